"""Feature maps phi(context, action): immutable values that can be told apart by what they compute.

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
