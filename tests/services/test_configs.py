"""The files of collector/ and docker-compose.yml: valid to the programs that read them, and of one piece."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.services.programs import CONFIGS, ROOT, Collector, Jaeger, program

TOGETHER = (("local.yaml",), ("gateway.yaml",), ("gateway.yaml", "langfuse.yaml"), ("balancer.yaml",), ("replay.yaml",))
"""Configurations of the collector, as they are run."""
PROFILES = ("clickhouse", "langfuse")
PAGES = ("jaeger", "collector", "collector-down")
SECRET = re.compile(r"PASSWORD|SECRET|SALT|ENCRYPTION|AUTH$|DATABASE_URL")


@pytest.mark.integration
@pytest.mark.parametrize("configs", TOGETHER, ids="+".join)
def test_the_collector_accepts_its_configurations(configs, tmp_path):
    done = Collector(tmp_path, *configs).validate()
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
def test_jaeger_accepts_its_configuration(tmp_path):
    done = Jaeger(tmp_path).validate()
    assert done.returncode == 0, done.stderr


@pytest.mark.integration
def test_the_collector_refuses_a_configuration_with_a_misspelt_key(tmp_path):
    done = Collector(tmp_path, "local.yaml", replace="exporters:\n  otlp_grpc/jaeger:\n    tmeout: 1s\n").validate()
    assert done.returncode != 0 and "tmeout" in done.stderr


def test_no_configuration_is_left_untested():
    known = {"jaeger.yaml", "builder.yaml", *(config for configs in TOGETHER for config in configs)}
    assert {path.name for path in CONFIGS.glob("*.yaml")} == known


def test_every_setting_that_a_configuration_reads_is_described_at_its_head():
    for path in CONFIGS.glob("*.yaml"):
        text = path.read_text()
        head = text[: re.search("^[^#]", text, re.MULTILINE).start()]
        for name in set(re.findall(r"\$\{env:([A-Z_]+)", text)):
            assert name in head, f"{path.name} does not tell what {name} is"


def test_the_modules_that_are_built_are_those_of_the_manifest():
    manifest = set(re.findall(r"^  - gomod: (\S+ v\S+)$", (CONFIGS / "builder.yaml").read_text(), re.MULTILINE))
    pinned = set(re.findall(r"^\t(\S+ v\S+)$", (CONFIGS / "distribution/go.mod").read_text(), re.MULTILINE))
    assert len(manifest) > 15 and manifest <= pinned
    version = re.search(r"^  version: (\S+)$", (CONFIGS / "builder.yaml").read_text(), re.MULTILINE)
    assert version and f"opentelemetry-collector-contrib:{version[1]}\n" in (ROOT / "docker-compose.yml").read_text()


def test_pages_and_compose_file_name_the_jaeger_that_is_built():
    page, jaeger = (ROOT / "docs" / "jaeger.md").read_text(), (CONFIGS / "jaeger" / "go.mod").read_text()
    (image,) = re.findall(r"image: (jaegertracing/jaeger:\S+)", (ROOT / "docker-compose.yml").read_text())
    (module,) = re.findall(r"github.com/jaegertracing/jaeger (v\S+)", jaeger)
    assert image in page and f"`github.com/jaegertracing/jaeger` {module}" in page


def test_every_test_that_a_page_names_exists():
    tests = "".join(path.read_text() for path in (ROOT / "tests" / "services").glob("test_*.py"))
    named = set(re.findall(r"`(test_\w+)`", "".join((ROOT / "docs" / f"{p}.md").read_text() for p in PAGES)))
    assert len(named) > 5 and all(f"def {name}(" in tests for name in named)


def compose(**environ: str) -> dict[str, Any]:
    """Return docker-compose.yml, in an environment, as the specification's own reference tool understands it."""
    text = (ROOT / "docker-compose.yml").read_text()
    # The tool checks variables and gives none of them a value.
    text = re.sub(r"(?<!\$)\$\{(\w+):-([^}]*)\}", lambda match: environ.get(match[1]) or match[2], text)
    Path("docker-compose.yml").write_text(text)
    done = subprocess.run(
        [program(["compose-spec"]), "--format=json", "docker-compose.yml"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert not done.stderr, "a variable without a default"
    return json.loads(done.stdout.replace(str(Path.cwd()), str(ROOT)))


@pytest.mark.integration
def test_the_compose_file_is_valid_pinned_and_open_to_this_machine_only():
    services = compose()["services"]
    assert {s for s in services if not services[s].get("profiles")} == {"collector", "jaeger"}
    assert set(PROFILES) == {p for s in services.values() for p in s.get("profiles", [])}
    for name, service in services.items():
        assert re.search(r":(RELEASE\.)?\d+[.-]\d+\S*$", service["image"]), f"{name} runs {service['image']}"
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", [])), name
        # The collector's image has nothing that could ask, and `secrets` ends at once.
        assert ("healthcheck" in service) == (name not in ("collector", "secrets")), name
    published = [port["published"] for s in services.values() for port in s.get("ports", [])]
    assert len(published) == len(set(published))


@pytest.mark.integration
def test_what_the_compose_file_mounts_exists_and_is_what_the_tests_run():
    services = compose()["services"]
    volumes = compose()["volumes"]
    for name, service in services.items():
        for mount in service.get("volumes", []):
            if mount["type"] == "bind":
                assert Path(mount["source"]).is_file() and mount["read_only"], f"{name}: {mount['source']}"
            else:
                assert mount["source"] in volumes

    def configs(name: str, **environ: str) -> set[str]:
        service = compose(**environ)["services"][name]
        mounted = {m["target"]: Path(m["source"]) for m in service["volumes"] if m["type"] == "bind"}
        found = [mounted[a.removeprefix("--config=")] for a in service["command"] if a.startswith("--config=")]
        assert found and all(path.parent == CONFIGS for path in found)
        return {path.name for path in found}

    assert configs("collector") == {"local.yaml"}
    assert configs("collector", SPANFOLD_COLLECTOR="gateway") == {"gateway.yaml"}
    assert configs("jaeger") == {"jaeger.yaml"}


@pytest.mark.integration
def test_every_variable_that_the_compose_file_gives_a_collector_is_one_its_configurations_read():
    services = compose()["services"]
    for name, files in {"collector": ("local.yaml", "gateway.yaml"), "jaeger": ("jaeger.yaml",)}.items():
        text = "".join((CONFIGS / file).read_text() for file in files)
        for variable in services[name]["environment"].keys() - {"GOMEMLIMIT"}:
            assert f"${{env:{variable}:-" in text, variable


@pytest.mark.integration
def test_there_is_no_default_secret_and_a_profile_waits_for_all_of_its_own():
    services = compose()["services"]
    for name, service in services.items():
        for variable, value in (service.get("environment") or {}).items():
            if SECRET.search(variable):
                assert value in (None, "postgresql://langfuse:@postgres:5432/langfuse"), f"{name}: {variable}"
        if service.get("profiles") and name != "secrets":
            assert service["depends_on"]["secrets"]["condition"] == "service_completed_successfully", name
    asked = set(services["secrets"]["environment"])
    names = re.search(r'^names="(.*)"$', (CONFIGS / "secrets.sh").read_text(), re.MULTILINE)
    assert names and set(names[1].split()) == asked
    given = compose(**{name: f"value-of-{name}" for name in asked})["services"]
    for name in asked:
        users = [s for s in given if s != "secrets" and f"value-of-{name}" in json.dumps(given[s])]
        assert users and all(given[user].get("profiles") or user == "collector" for user in users), name


def test_secrets_are_written_once_random_and_for_this_user_only(tmp_path):
    (tmp_path / "collector").mkdir()
    script = tmp_path / "collector" / "secrets.sh"
    script.write_bytes((CONFIGS / "secrets.sh").read_bytes())
    environ = {"PATH": os.environ["PATH"]}

    def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", str(script), *arguments], env={**environ, **more}, capture_output=True, text=True, timeout=30
        )

    missing = run("check", GRAFANA_PASSWORD="short")
    assert missing.returncode == 1 and "GRAFANA_PASSWORD" in missing.stderr and "short" not in missing.stderr.split()

    (tmp_path / ".env").write_text("REDIS_PASSWORD=mine-and-long-enough\n")
    assert run().returncode == 0
    first = (tmp_path / ".env").read_text()
    assert run().returncode == 0
    assert (tmp_path / ".env").read_text() == first
    written = dict(line.split("=", 1) for line in first.splitlines())
    assert written.pop("REDIS_PASSWORD") == "mine-and-long-enough"
    assert len(written) == 7 == len(set(written.values()))
    assert all(re.fullmatch("[0-9a-f]{64}", value) for value in written.values())
    assert run("check", **written, REDIS_PASSWORD="mine-and-long-enough").returncode == 0

    (tmp_path / ".env").unlink()
    run()
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    assert (tmp_path / ".env").read_text() != first


def test_the_dashboards_read_columns_that_the_exporter_writes():
    dashboard = json.loads((CONFIGS / "grafana" / "runs.json").read_text())
    source = (CONFIGS / "grafana" / "datasource.yaml").read_text()
    queries = [target for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(queries) == 5
    for target in queries:
        assert f"uid: {target['datasource']['uid']}\n" in source
        assert "FROM otel_traces" in target["rawSql"] and "$__timeFilter(Timestamp)" in target["rawSql"]
    assert "database: otel\n" in (CONFIGS / "gateway.yaml").read_text() and "defaultDatabase: otel\n" in source
