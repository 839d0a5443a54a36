"""Feature maps phi(context, action): immutable values, equal where they compute the same features.

May import ``rows`` and below.
"""

from hieropo.features.maps import (
    Columns,
    FeatureMap,
    embedding,
    feature_map_from_dict,
    indicator,
    merged_map,
    per_action,
)

__all__ = [
    "Columns",
    "FeatureMap",
    "embedding",
    "feature_map_from_dict",
    "indicator",
    "merged_map",
    "per_action",
]
