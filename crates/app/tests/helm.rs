//! helm, as it is, on our server: a chart is installed, upgraded, looked at, rolled back and removed.
//!
//! Not run by default: helm has to be built with Go first. `cargo xtask compare helm` does both.

use std::path::{Path, PathBuf};
use std::process::Command;

use clusters::toolchain::{HELM, KUBERNETES, Toolchain};
use serde_json::Value;
use testkit::Server;

/// A chart with a definition, an object of that kind, and what most charts have.
fn chart(dir: &Path) -> PathBuf {
    let root = dir.join("chart");
    let files = [
        ("Chart.yaml", "apiVersion: v2\nname: web\nversion: 0.1.0\n"),
        ("values.yaml", "replicas: 1\nimage: nginx:1\nextra: true\n"),
        (
            "crds/things.yaml",
            "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: things.helm.example.com}\nspec:\n  group: helm.example.com\n  scope: Namespaced\n  names: {plural: things, singular: thing, kind: Thing, listKind: ThingList}\n  versions:\n  - name: v1\n    served: true\n    storage: true\n    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {image: {type: string}}}}}}\n",
        ),
        (
            "templates/deployment.yaml",
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: {{ .Release.Name }}, labels: {rev: r{{ .Release.Revision }}}}\nspec:\n  replicas: {{ .Values.replicas }}\n  selector: {matchLabels: {app: web}}\n  template:\n    metadata: {labels: {app: web}}\n    spec: {containers: [{name: web, image: {{ .Values.image | quote }}}]}\n",
        ),
        (
            "templates/service.yaml",
            "apiVersion: v1\nkind: Service\nmetadata: {name: {{ .Release.Name }}}\nspec: {selector: {app: web}, ports: [{port: 80}]}\n",
        ),
        (
            "templates/thing.yaml",
            "{{ if .Values.extra }}apiVersion: helm.example.com/v1\nkind: Thing\nmetadata: {name: {{ .Release.Name }}}\nspec: {image: {{ .Values.image | quote }}}\n{{ end }}",
        ),
    ];
    for (name, text) in files {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(path, text).expect("a file");
    }
    root
}

#[test]
#[ignore = "needs helm; run `cargo xtask compare helm`"]
fn a_chart_is_installed_upgraded_and_rolled_back() {
    let toolchain = Toolchain::from_env().expect("a place for the programs");
    let helm = toolchain.ensure_program(&HELM, "helm").expect("helm is built");
    let kubectl = toolchain.ensure_program(&KUBERNETES, "kubectl").expect("kubectl is built");
    let dir = tempfile::tempdir().expect("a folder for the test");
    let server = Server::start(env!("CARGO_BIN_EXE_karmada"), &["--controllers", ""]);
    let chart = chart(dir.path());
    let run = |program: &Path, arguments: &[&str]| -> String {
        let output = Command::new(program)
            .args(arguments)
            .env("KUBECONFIG", server.kubeconfig())
            .env("HELM_CACHE_HOME", dir.path().join("cache"))
            .env("HELM_CONFIG_HOME", dir.path().join("config"))
            .env("HELM_DATA_HOME", dir.path().join("data-home"))
            .env("HOME", dir.path())
            .output()
            .expect("the program runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let chart = chart.to_str().expect("a path of text");
    let image = || -> (String, String, String) {
        let text = run(&kubectl, &["get", "deployment", "web", "-o", "json"]);
        let object: Value = serde_json::from_str(&text).expect("an object");
        let container = &object["spec"]["template"]["spec"]["containers"][0];
        (
            container["image"].as_str().unwrap_or("").to_owned(),
            object["spec"]["replicas"].to_string(),
            object["metadata"]["labels"]["rev"].as_str().unwrap_or("").to_owned(),
        )
    };
    let text = |parts: (&str, &str, &str)| (parts.0.to_owned(), parts.1.to_owned(), parts.2.to_owned());

    run(&helm, &["install", "web", chart, "--wait=false"]);
    assert_eq!(image(), text(("nginx:1", "1", "r1")));
    assert!(run(&kubectl, &["get", "things", "web", "-o", "name"]).contains("thing.helm.example.com/web"));

    run(
        &helm,
        &["upgrade", "web", chart, "--set", "image=nginx:2,replicas=3,extra=false", "--dry-run=server"],
    );
    assert_eq!(image(), text(("nginx:1", "1", "r1")), "a dry run changes nothing");
    run(&helm, &["upgrade", "web", chart, "--set", "image=nginx:2,replicas=3,extra=false"]);
    assert_eq!(image(), text(("nginx:2", "3", "r2")));
    assert_eq!(run(&kubectl, &["get", "things", "-o", "name"]), "", "what left the chart is removed");

    // What somebody else changed meanwhile is kept where the chart says nothing new about it.
    run(&kubectl, &["label", "deployment", "web", "by=hand"]);
    run(&helm, &["rollback", "web", "1"]);
    assert_eq!(image(), text(("nginx:1", "1", "r1")));
    assert!(run(&kubectl, &["get", "deployment", "web", "--show-labels"]).contains("by=hand"));
    assert!(run(&kubectl, &["get", "things", "web", "-o", "name"]).contains("web"));

    let history: Value =
        serde_json::from_str(&run(&helm, &["history", "web", "-o", "json"])).expect("a history");
    let states: Vec<&str> =
        history.as_array().expect("a list").iter().filter_map(|one| one["status"].as_str()).collect();
    assert_eq!(states, ["superseded", "superseded", "deployed"]);
    run(&helm, &["uninstall", "web"]);
    assert_eq!(run(&kubectl, &["get", "deployment,service,things", "-l", "app=web", "-o", "name"]), "");
    assert_eq!(run(&kubectl, &["get", "deployment", "-o", "name"]), "");
}
