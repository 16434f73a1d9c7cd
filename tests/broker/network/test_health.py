"""Whether an instance that is served is well (N28)."""

from __future__ import annotations

from pathlib import Path

from ssbroker.broker.instance import Instance
from ssbroker.broker.network.service.health import problems


def test_n28_an_instance_that_is_served_is_well(tmp_path: Path) -> None:
    with Instance.create(tmp_path / "shop", name="shop") as instance:
        with instance.serve(port=0, allow_unencrypted=True):
            assert problems(instance) == {}
        assert list(problems(instance)) == ["endpoint"]


def test_n28_an_endpoint_whose_thread_has_ended_is_a_problem(tmp_path: Path) -> None:
    with (
        Instance.create(tmp_path / "shop", name="shop") as instance,
        instance.serve(port=0, allow_unencrypted=True) as server,
    ):
        server.endpoint.close(0)
        assert list(problems(instance)) == ["endpoint"]


def test_n28_a_file_that_cannot_be_used_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    with Instance.create(folder, name="shop", background=False) as instance:
        instance.create_database("Sales")
    (folder / "Sales.sqlite").write_bytes(b"no database")
    with Instance.open(folder) as instance, instance.serve(port=0, allow_unencrypted=True):
        assert list(problems(instance)) == ["database Sales"]
