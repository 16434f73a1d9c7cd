"""The alert rules and the dashboard of `examples/serve` use metrics and labels that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from ssbroker import Instance
from ssbroker.broker.metrics import Metrics
from tests.broker.network.recording_endpoints import Authority
from tests.guards.repository import ROOT

FOLDER = ROOT / "examples" / "serve"
ALERTS: dict[str, Any] = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
RULES: list[dict[str, Any]] = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
# Prometheus adds these: the address that it collects from, and the job of its configuration.
ADDED = {"instance", "job"}
FUNCTIONS = {
    "and",
    "by",
    "count",
    "deriv",
    "increase",
    "label_values",
    "max",
    "min",
    "min_over_time",
    "or",
    "rate",
    "sum",
    "time",
    "vector",
}


@pytest.fixture(scope="module")
def labels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each sample that a served instance has."""
    folder = tmp_path_factory.mktemp("served")
    authority = Authority(folder / "certificates")
    with (
        Instance.create(folder / "shop", name="shop", background=False) as instance,
        instance.serve(port=0, trust=authority.trust("shop", "bank")),
    ):
        metrics = Metrics(instance)
        found = {
            f"{family.name}_total" if family.type == "counter" else family.name: set(family._labelnames)  # type: ignore[attr-defined]
            for family in metrics.collect()
        }
        metrics.close()
    return found


def used(expression: str) -> Iterator[tuple[str, set[str]]]:
    """Yields each metric that an expression names, with the labels of its selector."""
    for name, selector in re.findall(r"(ssbroker_\w+|up)(?:\{([^}]*)\})?", expression):
        yield name, set(re.findall(r"(\w+)\s*(?:=~|!=|!~|=)", selector))


def grouped(expression: str) -> set[str]:
    return {label for names in re.findall(r"by \(([^)]*)\)", expression) for label in re.split(r",\s*", names)}


def check(expression: str, labels: dict[str, set[str]]) -> set[str]:
    """Checks the metrics, labels and functions of an expression; returns the labels of its result."""
    names = list(used(expression))
    assert names, expression
    result = ADDED.union(*(labels[name] for name, _ in names if name != "up"))
    for name, selected in names:
        assert name == "up" or selected <= labels[name] | ADDED, (name, selected)
    assert grouped(expression) <= result
    rest = re.sub(r"ssbroker_\w+|\{[^}]*\}|\[[^\]]*\]|by \([^)]*\)", "", expression)
    assert set(re.findall(r"[a-z_]{2,}", rest)) - {"up"} <= FUNCTIONS
    assert expression.count("(") == expression.count(")")
    return result


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_alert_uses_metrics_and_labels_that_exist(rule: dict[str, Any], labels: dict[str, set[str]]) -> None:
    result = check(rule["expr"], labels)
    texts = rule["annotations"]
    assert set(texts) == {"summary", "description"}
    assert set(re.findall(r"\$labels\.(\w+)", str(texts))) <= result
    assert rule["labels"]["severity"] in {"critical", "warning", "info"}


def test_alerts_have_distinct_names() -> None:
    names = [rule["alert"] for rule in RULES]
    assert len(set(names)) == len(names)


def test_a_counter_is_used_as_a_rate_and_a_gauge_is_not() -> None:
    expressions = [rule["expr"] for rule in RULES] + [target["expr"] for panel in PANELS for target in panel["targets"]]
    for expression in expressions:
        for name in re.findall(r"ssbroker_\w+", expression):
            is_rate = re.search(rf"(?:rate|increase)\({name}\b", expression) is not None
            assert is_rate == name.endswith("_total"), expression


@pytest.mark.parametrize("panel", PANELS, ids=[panel["title"] for panel in PANELS])
def test_panel_uses_metrics_and_labels_that_exist(panel: dict[str, Any], labels: dict[str, set[str]]) -> None:
    for target in panel["targets"]:
        result = check(target["expr"].replace("$__rate_interval", "5m"), labels)
        assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= result
        assert '{instance=~"$instance"' in target["expr"], "the choice of instances applies"
        assert target["datasource"]["uid"] == "${datasource}"


def test_panels_do_not_overlap_and_fit_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert max(x for x, _ in cells) < 24
        assert not taken & cells
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)


def test_the_choice_of_instances_reads_a_metric_that_exists(labels: dict[str, set[str]]) -> None:
    datasource, instance = DASHBOARD["templating"]["list"]
    assert (datasource["name"], datasource["query"]) == ("datasource", "prometheus")
    check(instance["definition"].replace(", instance", ""), labels)


def test_the_check_finds_a_wrong_metric_label_and_function(labels: dict[str, set[str]]) -> None:
    for wrong in (
        "ssbroker_nothing > 0",
        'ssbroker_queue_enabled{que="Q"} == 0',
        "maximum(ssbroker_queue_enabled)",
        "sum by (service) (ssbroker_queue_enabled)",
    ):
        with pytest.raises((AssertionError, KeyError)):
            check(wrong, labels)
