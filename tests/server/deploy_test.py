# SPDX-License-Identifier: Apache-2.0
"""What deploy/ says of the server is true: metrics, flags and libraries that exist, files that their programs can read."""
import json
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import PROMPT, PROGRAM, ROOT, Server

try:
    import yaml
except ImportError:
    yaml = None

DEPLOY = ROOT / "deploy"
METRIC = re.compile(r"\b(?:vllm|coluber):\w+")
# What every Debian has.
BASE = {"libc6", "libstdc++6", "libgcc-s1"}


def run(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False)


def flags_of(text):
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", text))


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with Server() as server:
            server.post("/v1/completions", PROMPT)
            server.wait_until_idle()
            cls.text = server.request("GET", "/metrics")[2].decode()
        cls.names = set(METRIC.findall(re.sub(r"(?m)^#.*$", "", cls.text)))

    def test_the_dashboard_and_the_alerts_ask_for_metrics_that_exist(self):
        dashboard = json.loads((DEPLOY / "grafana" / "dashboards" / "coluber.json").read_text())
        expressions = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", [])]
        self.assertGreater(len(expressions), 30)
        for text in (*expressions, json.dumps(dashboard["templating"]), (DEPLOY / "prometheus" / "alerts.yml").read_text()):
            self.assertEqual(set(METRIC.findall(text)) - self.names, set(), text)
        for label in re.findall(r"sum by \((\w+)\)", " ".join(expressions)):
            self.assertIn(f'{label}="', self.text)

    def test_the_dashboard_shows_every_metric_of_ours(self):
        shown = (DEPLOY / "grafana" / "dashboards" / "coluber.json").read_text()
        plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in self.names}
        self.assertEqual([name for name in sorted(plain) if name not in shown], [])


class Files(unittest.TestCase):
    def test_flags_that_are_named_exist(self):
        known = flags_of(run(PROGRAM, "serve", "--help").stdout)
        entry = re.search(r"ENTRYPOINT (\[.*\])", (DEPLOY / "Dockerfile").read_text())[1]
        command = re.search(r"command: (\[.*\])", (DEPLOY / "compose.yaml").read_text())[1]
        unit = re.sub(r"(?m)^.*systemctl.*$", "", (DEPLOY / "coluber.service").read_text())
        for text in (entry, command, unit, (DEPLOY / "coluber.env").read_text()):
            self.assertEqual(flags_of(text) - known, set())
        self.assertTrue(flags_of(entry))

    @unittest.skipUnless(shutil.which("readelf") and shutil.which("dpkg-query"), "needs readelf and dpkg-query")
    def test_the_image_has_the_libraries_that_the_program_needs(self):
        needed = re.findall(r"NEEDED.*\[(.+)\]", run("readelf", "-d", PROGRAM).stdout)
        self.assertGreater(len(needed), 5)
        image = (DEPLOY / "Dockerfile").read_text().split("FROM")[-1]
        for library in needed:
            if "san.so" in library:
                continue  # of a sanitized build
            owners = {line.split(":")[0] for line in run("dpkg-query", "-S", library).stdout.splitlines()}
            self.assertTrue(owners & (BASE | set(image.split())),
                            f"{library} is in the package {sorted(owners)}, which deploy/Dockerfile does not install")

    @unittest.skipUnless(shutil.which("cmake") and shutil.which("ninja"), "needs cmake and ninja")
    def test_what_the_image_is_built_of_is_enough_to_configure(self):
        configure = re.search(r"RUN (cmake --preset \w+ -B) /build", (DEPLOY / "Dockerfile").read_text())[1]
        with tempfile.TemporaryDirectory() as folder:
            for line in (DEPLOY / "Dockerfile.dockerignore").read_text().split():
                if not line.startswith("!"):
                    continue
                source, target = ROOT / line[1:], Path(folder) / "context" / line[1:]
                target.parent.mkdir(exist_ok=True)
                (shutil.copytree if source.is_dir() else shutil.copy)(source, target)
            done = subprocess.run([*configure.split(), f"{folder}/build"], cwd=f"{folder}/context", stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT, text=True, timeout=120, check=False)
            self.assertEqual(done.returncode, 0, done.stdout)

    @unittest.skipIf(yaml is None, "PyYAML is not installed; tools/setup.sh test puts it into ~/.cache/coluber/test-venv")
    def test_configurations_are_whole_and_point_at_each_other(self):
        read = {path.relative_to(DEPLOY).as_posix(): yaml.safe_load(path.read_text())
                for path in DEPLOY.rglob("*") if path.suffix in (".yml", ".yaml")}
        services = read["compose.yaml"]["services"]
        target = read["prometheus/prometheus.yml"]["scrape_configs"][0]["static_configs"][0]["targets"][0]
        self.assertIn(target.split(":")[0], services)
        self.assertIn(f"EXPOSE {target.split(':')[1]}", (DEPLOY / "Dockerfile").read_text())
        source = read["grafana/provisioning/datasources/prometheus.yaml"]["datasources"][0]
        self.assertIn(re.match(r"http://(\w+):", source["url"])[1], services)
        self.assertIn(f'"uid": "{source["uid"]}"', (DEPLOY / "grafana" / "dashboards" / "coluber.json").read_text())
        folder = read["grafana/provisioning/dashboards/coluber.yaml"]["providers"][0]["options"]["path"]
        self.assertTrue(any(f":{folder}:" in volume for volume in services["grafana"]["volumes"]))
        for service in services.values():
            for volume in service.get("volumes", []):
                if volume.startswith("./"):
                    self.assertTrue((DEPLOY / volume.split(":")[0]).is_dir(), volume)
        for rule in read["prometheus/alerts.yml"]["groups"][0]["rules"]:
            self.assertEqual(sorted(set(rule) - {"for"}), ["alert", "annotations", "expr", "labels"])

    @unittest.skipUnless(shutil.which("systemd-analyze"), "needs systemd-analyze")
    def test_systemd_takes_the_unit(self):
        with tempfile.TemporaryDirectory() as folder:
            unit = Path(folder) / "coluber.service"
            # The program as it will be installed is not there yet.
            unit.write_text((DEPLOY / "coluber.service").read_text().replace("/usr/local/bin/coluber", str(PROGRAM)))
            checked = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(unit))
            self.assertEqual((checked.returncode, checked.stdout.strip()), (0, ""))
            exposure = run("systemd-analyze", "security", "--offline=true", "--threshold=25", str(unit))
            self.assertEqual(exposure.returncode, 0, exposure.stdout)

    def test_the_image_and_its_check_are_without_complaint(self):
        hadolint = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))
        if hadolint is None:
            self.skipTest("hadolint is not installed; tools/setup.sh test puts it into ~/.cache/coluber/test-venv")
        checked = run(hadolint, str(DEPLOY / "Dockerfile"))
        self.assertEqual((checked.returncode, checked.stdout), (0, ""))

    @unittest.skipUnless(shutil.which("bash"), "needs bash")
    def test_the_images_health_check_tells_a_server_from_none(self):
        check = json.loads(re.search(r"CMD (\[.*\])", (DEPLOY / "Dockerfile").read_text())[1])
        with Server() as server:
            words = [word.replace("/8000", f"/{server.port}") for word in check]
            self.assertEqual(run(*words).returncode, 0)
        self.assertNotEqual(run(*words).returncode, 0)


if __name__ == "__main__":
    unittest.main()
