"""``hieropo export``: write a policy in the form of another tool."""

import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from hieropo.cli.console import example, print_json, shared_options

_SAMPLES = {"number": 0.0, "boolean": True, "text": "a", "time": "2026-01-01T00:00:00"}


@click.group("export", short_help="Write a policy in the form of another tool.")
def export_group() -> None:
    """Write a policy in the form of another tool."""


@export_group.command(
    "mlflow",
    short_help="Write a policy as a pyfunc model of MLflow.",
    epilog=example("hieropo export mlflow policy -o model", "mlflow models serve -m model"),
)
@click.argument("directory", metavar="DIR", type=str)
@click.option(
    "-o", "--output", required=True, metavar="MODEL", help="The directory to write; it must not exist."
)
@shared_options
def export_mlflow_command(directory: str, output: str, as_json: bool) -> None:  # noqa: FBT001
    """Write the policy in DIR as a pyfunc model of MLflow, with its signature and an example.

    The model takes a frame of requests, with the columns that `hieropo decide` reads, and returns a frame of decisions.
    It needs the extra mlflow: pip install 'hieropo[mlflow]'. Where the model is loaded, hieropo must be installed.
    """
    from hieropo import __version__
    from hieropo.errors import InputError
    from hieropo.learners.loading import load_learner

    if find_spec("mlflow") is None:
        raise InputError(
            "The export needs mlflow, which is not installed. Install the extra: pip install 'hieropo[mlflow]'."
        )
    if Path(output).exists():
        raise InputError(f"{output} exists, and a model is not written over it. Give another -o.")
    import mlflow.pyfunc
    from mlflow.models import infer_signature

    learner = load_learner(directory)
    requests = _example(learner)
    decisions = learner.decide(requests, id=[]).to_pandas().drop(columns=["reason"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of types that MLflow would like in the model's code
        mlflow.pyfunc.save_model(
            output, python_model=str(Path(__file__).parents[1] / "_mlflow_model.py"), artifacts={"policy": directory},
            signature=infer_signature(requests, decisions), input_example=requests,
            pip_requirements=[f"hieropo=={__version__}", "pandas"],
        )  # fmt: skip
    if as_json:
        print_json({"model": output, "columns": list(requests.columns)})
        return
    click.echo(
        f"{output} holds the policy as a pyfunc model. It reads the columns {', '.join(requests.columns)}."
    )


def _example(learner: Any) -> Any:
    """Return one request of a known task as a frame."""
    from hieropo.logs.arrow.result_table import frame_package
    from hieropo.logs.arrow.writing import task_id_columns

    roles, features = learner.roles_, learner.features_
    tasks = learner.moments_.tasks[:1]
    columns = {name: ids.to_pylist() for name, ids in task_id_columns(roles.task, tasks).items()}
    terms = getattr(features, "terms", None)
    if terms is None:
        columns |= {name: [0.0] for name in features.columns}
    else:
        columns |= {column.name: [_SAMPLES[column.kind]] for column in terms.columns}
    return frame_package("pandas").DataFrame(columns)
