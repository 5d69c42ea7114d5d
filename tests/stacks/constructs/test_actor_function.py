"""The actor function: its size, its concurrency, its image. tests/stacks/test_variants.py has the properties of all."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from runtime.fleet import ACTOR_VARIABLES
from stacks.constructs.actor_function import onnx_argument
from tests.helpers import ROOT
from tests.stacks.conftest import STACK, Assembly, Synthesise

ACTORS_MAX, TIMEOUT_S = 6, 200
"""Limits of the small experiment."""


@pytest.mark.parametrize(("name", "processor"), [("redis", "x86_64"), ("arm", "arm64")])
def test_size_and_limits_are_the_experiments(
    variant: Callable[[str], Assembly], name: str, processor: str
) -> None:
    made = variant(name)
    function = made.only("AWS::Lambda::Function")
    assert (function["MemorySize"], function["Timeout"]) == (1024, TIMEOUT_S)
    assert (function["Architectures"], function["PackageType"]) == ([processor], "Image")
    assert function["FunctionName"] == f"{STACK}-actor"
    assert function["Environment"]["Variables"] == ACTOR_VARIABLES, "no credentials"
    # Lambda refuses a reservation in a new account, which runs ten functions at once.
    assert "ReservedConcurrentExecutions" not in function
    platform = {"x86_64": "linux/amd64", "arm64": "linux/arm64"}[processor]
    source = made.image_asset()
    assert (source["platform"], source["dockerBuildArgs"]) == (
        platform,
        {
            "ENVIRONMENT_ID": "Hopper-v5",
            "ENVIRONMENT": '{"preprocessing": "auto", "truncate_at_fragment": true, "rescale_actions": true}',
        },
    )


def test_its_variables_are_all_that_the_handler_reads() -> None:
    source = "".join(path.read_text() for path in (ROOT / "lambda_actor").rglob("*.py"))
    read = set(re.findall(r"environ(?:\.get\(|\[)\s*[\"'](\w+)", source))
    # Two are set locally alone, and one is only read for a message.
    assert read == {"ACTOR_CACHE_USERNAME", "ACTOR_CACHE_PASSWORD", "MUJOCO_GL"}


@pytest.mark.parametrize(
    ("left", "reserved", "warm"), [(10, None, None), (106, None, 4), (108, 6, 6)]
)
def test_an_account_reserves_and_keeps_warm_what_it_has_room_for(
    synthesise: Synthesise, left: int, reserved: int | None, warm: int | None
) -> None:
    """A reservation caps the actors whoever invokes them."""
    made = synthesise(
        cache="external", context={"actor_concurrency": str(left)}, actor__provisioned=ACTORS_MAX
    )
    assert made.only("AWS::Lambda::Function").get("ReservedConcurrentExecutions") == reserved
    kept = [
        one["Properties"]["ProvisionedConcurrencyConfig"]["ProvisionedConcurrentExecutions"]
        for one in made.resources("AWS::Lambda::Alias").values()
    ]
    assert kept == ([warm] if warm else [])


def test_its_image_has_our_sources_and_no_other_files(serverless: Assembly) -> None:
    folder = serverless.directory / serverless.image_asset()["directory"]
    names = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    ours = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "lambda_actor").rglob("*")
        if path.suffix == ".py"
        or path.name in ("requirements.txt", "requirements-onnx.txt", "py.typed")
    }
    assert names == {"Dockerfile", "package/requirements.txt"} | ours


def test_onnxruntime_is_in_the_image_of_a_trainer_of_the_users_own_alone() -> None:
    kinds = ("external", "instance", "function", "stellaris", "gmi")
    assert [onnx_argument(kind) for kind in kinds] == [{"ONNX": "true"}, {}, {}, {}, {}]


def test_the_dockerfile_ends_as_an_unprivileged_lambda_client() -> None:
    text = (ROOT / "lambda_actor" / "Dockerfile").read_text()
    assert 'RUN if [ "${ONNX}" = true ]; then' in text
    user, check = text.index("USER 65534:65534"), text.index("RUN python -m lambda_actor.check")
    assert user < check, "the build tries the environment as the function's user"
    assert text.endswith(
        'ENTRYPOINT ["python", "-m", "awslambdaric"]\nCMD ["lambda_actor.handler.handler"]\n'
    )
