//! What people do all day with `kubectl`, done with an unmodified one.
//!
//! Every test starts a server with a data directory of its own and runs the program as a user would. Needs the `kubectl`
//! of the `clusters` crate; where it cannot be had, the tests say so loudly and do nothing.

mod terminal;

use serde_json::json;

use crate::terminal::Terminal;

const WEB: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, labels: {app: web}}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: nginx, image: 'nginx:1.0', ports: [{containerPort: 80}]}
";
const SETTINGS: &str = "
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {colour: red}
";

#[tokio::test]
async fn objects_are_created_and_shown() {
    let Some(terminal) = Terminal::open().await else { return };
    terminal
        .run("create configmap settings --from-literal=colour=red")
        .await
        .says("configmap/settings created");
    terminal.fails("create configmap settings").await.complains("configmaps \"settings\" already exists");
    terminal.with(WEB, "create -f -").await.says("deployment.apps/web created");
    terminal
        .run("create deployment api --image=api:2 --replicas=1")
        .await
        .says("deployment.apps/api created");
    terminal.run("create secret generic s --from-literal=k=v").await.says("secret/s created");
    terminal.run("create namespace team").await.says("namespace/team created");

    terminal.run("get deployments").await.has("NAME").has("READY").has("0/2").has("0/1");
    terminal.run("get deployment web -o wide").await.has("CONTAINERS").has("nginx:1.0").has("app=web");
    terminal
        .run("get deployment web -o yaml")
        .await
        .has("image: nginx:1.0")
        .has("progressDeadlineSeconds: 600");
    terminal.run("get deployment web -o json").await.has("\"kind\": \"Deployment\"");
    terminal.run("get deployment web -o jsonpath={.spec.replicas}").await.is("2");
    terminal
        .run("get deployments -o name --sort-by=.metadata.name")
        .await
        .is("deployment.apps/api\ndeployment.apps/web\n");
    terminal
        .run("get deployments -o name --sort-by=.spec.replicas")
        .await
        .is("deployment.apps/api\ndeployment.apps/web\n");
    terminal.run("get deployments -l app=web -o name").await.is("deployment.apps/web\n");
    terminal.run("get deployments -l app!=web -o name").await.is("deployment.apps/api\n");
    terminal
        .run("get deployments --field-selector=metadata.name=api -o name")
        .await
        .is("deployment.apps/api\n");
    terminal.run("get deploy,secret -o name").await.has("deployment.apps/web").has("secret/s");
    terminal
        .run("get deployments -A --no-headers --chunk-size=1 -o name")
        .await
        .has("deployment.apps/api")
        .has("deployment.apps/web");
    terminal.run("get deployment web -o custom-columns=NAME:.metadata.name --no-headers").await.is("web\n");
    terminal.fails("get deployment nope").await.complains("deployments.apps \"nope\" not found");
    terminal.fails("get nonsense").await.complains("the server doesn't have a resource type \"nonsense\"");
    terminal.run("get deployments -n team").await.complains("No resources found in team namespace.");
    terminal
        .run("describe deployment web")
        .await
        .has("2 desired")
        .has("nginx:1.0")
        .has("RollingUpdateStrategy");
    terminal.run("describe configmap settings").await.has("colour:").has("red");
    terminal.close().await;
}

#[tokio::test]
async fn a_watch_prints_what_happens() {
    let Some(terminal) = Terminal::open().await else { return };
    terminal.run("create configmap first").await.says("configmap/first created");
    let mut watch = terminal.follow("get configmaps --watch -o name");
    watch.until("configmap/first").await;
    terminal.run("create configmap second").await.says("configmap/second created");
    watch.until("configmap/second").await;
    terminal.close().await;
}

#[tokio::test]
async fn kinds_are_explained() {
    let Some(terminal) = Terminal::open().await else { return };
    terminal
        .run("explain deployment.spec.replicas")
        .await
        .has("GROUP:      apps")
        .has("KIND:       Deployment")
        .has("FIELD: replicas <integer>");
    terminal.run("explain pods --recursive").await.has("containers").has("-required-");
    terminal.fails("explain deployment.spec.nope").await.complains("field \"nope\" does not exist");
    terminal.run("api-resources").await.has("deployments").has("configmaps").has("customresourcedefinitions");
    terminal.run("api-resources --api-group=apps --namespaced -o name").await.has("statefulsets.apps");
    terminal.run("api-versions").await.has("apps/v1").has("rbac.authorization.k8s.io/v1");
    terminal.run("version").await.has("Server Version: v1.36");
    terminal.run("get --raw /readyz").await.is("ok");
    terminal.close().await;
}

#[tokio::test]
async fn objects_are_applied_by_the_client() {
    let Some(terminal) = Terminal::open().await else { return };
    terminal.with(SETTINGS, "apply --dry-run=client -f -").await.says("configmap/settings created (dry run)");
    terminal
        .with(SETTINGS, "apply --dry-run=server -f -")
        .await
        .says("configmap/settings created (server dry run)");
    terminal.fails("get configmap settings").await.complains("not found");
    terminal.with(SETTINGS, "apply -f -").await.says("configmap/settings created");
    terminal.with(SETTINGS, "apply -f -").await.says("configmap/settings unchanged");
    terminal.with(SETTINGS, "diff -f -").await.is("");
    let blue = SETTINGS.replace("red", "blue");
    // `diff` tells by its exit code that there is one.
    terminal.with_failing(&blue, "diff -f -").await.has("-  colour: red").has("+  colour: blue");
    terminal.with(&blue, "apply -f -").await.says("configmap/settings configured");
    // What was applied before and is not any more goes away; what others wrote stays.
    terminal
        .run("patch configmap settings --type=merge -p {\"data\":{\"size\":\"9\"}}")
        .await
        .says("configmap/settings patched");
    let other = SETTINGS.replace("colour: red", "shape: round");
    terminal.with(&other, "apply -f -").await.says("configmap/settings configured");
    terminal
        .run("get configmap settings -o jsonpath={.data}")
        .await
        .is("{\"shape\":\"round\",\"size\":\"9\"}");
    terminal
        .with_failing(&format!("{SETTINGS}nonsense: 1\n"), "apply -f -")
        .await
        .complains("unknown field \"nonsense\"");
    terminal.close().await;
}

#[tokio::test]
async fn objects_are_applied_by_the_server() {
    let Some(terminal) = Terminal::open().await else { return };
    terminal.with(SETTINGS, "apply --server-side -f -").await.says("configmap/settings serverside-applied");
    let blue = SETTINGS.replace("red", "blue");
    terminal
        .with_failing(&blue, "apply --server-side --field-manager=other -f -")
        .await
        .complains("conflict with \"kubectl\": .data.colour");
    terminal.run("get configmap settings -o jsonpath={.data.colour}").await.is("red");
    terminal
        .with(&blue, "apply --server-side --field-manager=other --force-conflicts -f -")
        .await
        .says("configmap/settings serverside-applied");
    terminal.run("get configmap settings -o jsonpath={.data.colour}").await.is("blue");
    terminal
        .run("get configmap settings --show-managed-fields -o jsonpath={.metadata.managedFields[*].manager}")
        .await
        .has("other");
    terminal
        .with(WEB, "apply --server-side --dry-run=server -f -")
        .await
        .has("serverside-applied (server dry run)");
    terminal.close().await;
}

#[tokio::test]
async fn objects_are_changed_in_every_usual_way() {
    let Some(terminal) = Terminal::open().await else { return };
    terminal.with(WEB, "create -f -").await.says("deployment.apps/web created");
    let field = |path: &str| format!("get deployment web -o jsonpath={{{path}}}");
    terminal
        .run("patch deployment web -p {\"spec\":{\"replicas\":3}}")
        .await
        .says("deployment.apps/web patched");
    terminal
        .run("patch deployment web --type=merge -p {\"spec\":{\"paused\":true}}")
        .await
        .says("deployment.apps/web patched");
    terminal
        .run("patch deployment web --type=json -p [{\"op\":\"replace\",\"path\":\"/spec/replicas\",\"value\":4}]")
        .await
        .says("deployment.apps/web patched");
    terminal.run(&field(".spec.replicas")).await.is("4");
    terminal.run(&field(".spec.paused")).await.is("true");
    terminal.run("label deployment web tier=front").await.says("deployment.apps/web labeled");
    terminal.fails("label deployment web tier=back").await.complains("already has a value (front)");
    terminal.run("label deployment web tier=back --overwrite").await.says("deployment.apps/web labeled");
    terminal.run(&field(".metadata.labels.tier")).await.is("back");
    terminal.run("annotate deployment web note=hello").await.says("deployment.apps/web annotated");
    terminal.run(&field(".metadata.annotations.note")).await.is("hello");
    terminal.run("scale deployment web --replicas=7").await.says("deployment.apps/web scaled");
    terminal
        .fails("scale deployment web --current-replicas=2 --replicas=1")
        .await
        .complains("Expected replicas to be 2, was 7");
    terminal.run(&field(".spec.replicas")).await.is("7");
    terminal.run("set image deployment/web nginx=nginx:2.0").await.says("deployment.apps/web image updated");
    terminal.run(&field(".spec.template.spec.containers[0].image")).await.is("nginx:2.0");
    terminal.run("set env deployment/web MODE=test").await.says("deployment.apps/web env updated");
    terminal.run(&field(".spec.template.spec.containers[0].env[0].name")).await.is("MODE");
    terminal.run("expose deployment web --port=80").await.says("service/web exposed");
    terminal.run("get service web -o jsonpath={.spec.selector.app}").await.is("web");
    terminal
        .run("autoscale deployment web --max=9")
        .await
        .says("horizontalpodautoscaler.autoscaling/web autoscaled");
    terminal.run("rollout resume deployment web").await.says("deployment.apps/web resumed");
    terminal.run("edit deployment web").await.says("deployment.apps/web edited");
    terminal.run(&field(".spec.template.spec.containers[0].image")).await.is("nginx:edited");
    terminal.close().await;
}

#[tokio::test]
async fn waiting_ends_when_the_wait_is_over() {
    let Some(terminal) = Terminal::open().await else { return };
    terminal.with(WEB, "create -f -").await.says("deployment.apps/web created");
    terminal
        .run("wait deployment web --for=jsonpath={.spec.replicas}=2 --timeout=60s")
        .await
        .says("deployment.apps/web condition met");
    let mut waiting = terminal.follow("wait deployment web --for=condition=Available --timeout=60s");
    let status = json!({"status": {"conditions": [{"type": "Available", "status": "True"}]}});
    terminal
        .run(&format!("patch deployment web --subresource=status --type=merge -p {status}"))
        .await
        .says("deployment.apps/web patched");
    waiting.until("deployment.apps/web condition met").await;
    terminal.run("delete deployment web --wait=false").await.has("deployment.apps \"web\" deleted");
    terminal.run("wait deployment web --for=delete --timeout=60s").await;
    terminal.fails("get deployment web").await.complains("not found");
    terminal.close().await;
}

#[tokio::test]
async fn deletion_takes_dependents_along_or_leaves_them() {
    let Some(terminal) = Terminal::open().await else { return };
    for (policy, dependent_stays) in [("background", false), ("foreground", false), ("orphan", true)] {
        terminal.run("create configmap owner").await.says("configmap/owner created");
        let uid = terminal.run("get configmap owner -o jsonpath={.metadata.uid}").await.out;
        let owner = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": uid}]);
        let dependent = json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "dependent", "ownerReferences": owner}});
        terminal.with(&dependent.to_string(), "create -f -").await.says("configmap/dependent created");
        terminal
            .run(&format!("delete configmap owner --cascade={policy} --timeout=60s"))
            .await
            .has("configmap \"owner\" deleted");
        terminal.fails("get configmap owner").await.complains("not found");
        if dependent_stays {
            terminal.run("get configmap dependent -o jsonpath={.metadata.ownerReferences}").await.is("");
        } else {
            terminal.run("wait configmap dependent --for=delete --timeout=60s").await;
        }
    }
    terminal.run("create configmap labelled").await.says("configmap/labelled created");
    terminal.run("label configmap labelled round=1").await.says("configmap/labelled labeled");
    terminal.run("delete configmaps -l round=1").await.has("configmap \"labelled\" deleted");
    terminal.run("delete configmap nope --ignore-not-found").await.is("");
    terminal.close().await;
}

#[tokio::test]
async fn rights_are_asked_for_and_given() {
    let Some(terminal) = Terminal::open().await else { return };
    terminal.run("auth can-i delete pods").await.says("yes");
    terminal.run("auth whoami").await.has("system:admin").has("system:masters");
    terminal.run("create serviceaccount robot").await.says("serviceaccount/robot created");
    let robot = "--as=system:serviceaccount:default:robot";
    terminal.fails(&format!("auth can-i list configmaps {robot}")).await.says("no");
    terminal
        .run("create role reader --verb=list --resource=configmaps")
        .await
        .has("role.rbac.authorization.k8s.io/reader created");
    terminal
        .run("create rolebinding reader --role=reader --serviceaccount=default:robot")
        .await
        .has("rolebinding.rbac.authorization.k8s.io/reader created");
    terminal.run(&format!("auth can-i list configmaps {robot}")).await.says("yes");
    terminal.fails(&format!("get secrets {robot}")).await.complains("secrets is forbidden: User");
    let token = terminal.run("create token robot").await.out;
    assert_eq!(token.trim().split('.').count(), 3, "a token has three parts");
    // Without the administrator's certificate, which would count before the token.
    let as_robot = format!(
        "--kubeconfig=/dev/null --server={} --token={} --insecure-skip-tls-verify",
        terminal.url(),
        token.trim()
    );
    terminal.run(&format!("get configmaps -o name {as_robot}")).await;
    terminal.fails(&format!("get secrets {as_robot}")).await.complains("secrets is forbidden: User");
    terminal.run(&format!("auth whoami {as_robot}")).await.has("system:serviceaccount:default:robot");
    terminal.close().await;
}
