//! Pods, and pod templates of workloads.

use jiff::Timestamp;
use serde_json::Value;

use super::events::age;
use super::words::{Page, controller, each, joined, shown, sorted, text, time, yes};

pub(super) fn pod(page: &mut Page, pod: &Value) {
    let (metadata, spec, status) = (&pod["metadata"], &pod["spec"], &pod["status"]);
    page.pair(0, "Name", text(&metadata["name"]));
    page.pair(0, "Namespace", text(&metadata["namespace"]));
    if let Some(priority) = spec["priority"].as_i64() {
        page.pair(0, "Priority", priority);
    }
    for (title, key) in [
        ("Priority Class Name", "priorityClassName"),
        ("Runtime Class Name", "runtimeClassName"),
        ("Service Account", "serviceAccountName"),
    ] {
        optional(page, title, &spec[key]);
    }
    match text(&spec["nodeName"]).as_str() {
        "" => page.pair(0, "Node", "<none>"),
        node => page.pair(0, "Node", format!("{node}/{}", text(&status["hostIP"]))),
    }
    if status["startTime"].is_string() {
        page.pair(0, "Start Time", time(&status["startTime"]));
    }
    page.labels("Labels", &metadata["labels"]);
    page.annotations("Annotations", &metadata["annotations"]);
    let phase = text(&status["phase"]);
    match metadata["deletionTimestamp"].as_str() {
        Some(since) if phase != "Failed" && phase != "Succeeded" => {
            page.pair(0, "Status", format!("Terminating (lasts {})", age(since, Timestamp::now())));
            page.pair(
                0,
                "Termination Grace Period",
                format!("{}s", shown(&metadata["deletionGracePeriodSeconds"], "0")),
            );
        }
        _ => page.pair(0, "Status", phase),
    }
    optional(page, "Reason", &status["reason"]);
    optional(page, "Message", &status["message"]);
    optional(page, "SeccompProfile", &spec["securityContext"]["seccompProfile"]["type"]);
    page.pair(0, "IP", text(&status["podIP"]));
    if each(&status["podIPs"]).next().is_none() {
        page.pair(0, "IPs", "<none>");
    } else {
        page.line(0, "IPs:");
        for address in each(&status["podIPs"]) {
            page.pair(1, "IP", text(&address["ip"]));
        }
    }
    if let Some(owner) = controller(pod) {
        page.pair(0, "Controlled By", owner);
    }
    optional(page, "NominatedNodeName", &status["nominatedNodeName"]);
    if each(&spec["initContainers"]).next().is_some() {
        containers(
            page,
            "Init Containers",
            &spec["initContainers"],
            Some(&status["initContainerStatuses"]),
            "",
        );
    }
    containers(page, "Containers", &spec["containers"], Some(&status["containerStatuses"]), "");
    if each(&spec["ephemeralContainers"]).next().is_some() {
        let statuses = Some(&status["ephemeralContainerStatuses"]);
        containers(page, "Ephemeral Containers", &spec["ephemeralContainers"], statuses, "");
    }
    if each(&spec["readinessGates"]).next().is_some() {
        page.line(0, "Readiness Gates:");
        page.line(1, "Type\tStatus");
        for gate in each(&spec["readinessGates"]) {
            let kind = &gate["conditionType"];
            let found = each(&status["conditions"]).find(|condition| condition["type"] == *kind);
            let status = found.map_or("<none>".to_owned(), |condition| text(&condition["status"]));
            page.line(1, format!("{} \t{status} ", text(kind)));
        }
    }
    if each(&status["conditions"]).next().is_some() {
        page.line(0, "Conditions:");
        page.line(1, "Type\tStatus");
        for condition in each(&status["conditions"]) {
            page.line(1, format!("{} \t{} ", text(&condition["type"]), text(&condition["status"])));
        }
    }
    volumes(page, &spec["volumes"], "");
    if let Some(class) = status["qosClass"].as_str() {
        page.pair(0, "QoS Class", class);
    }
    page.labels("Node-Selectors", &spec["nodeSelector"]);
    tolerations(page, "Tolerations", &spec["tolerations"]);
    spread(page, "Topology Spread Constraints", &spec["topologySpreadConstraints"]);
}

fn optional(page: &mut Page, title: &str, value: &Value) {
    if let Some(text) = value.as_str().filter(|text| !text.is_empty()) {
        page.pair(0, title, text);
    }
}

/// The template of a workload's pods.
pub(super) fn template(page: &mut Page, template: &Value) {
    page.line(0, "Pod Template:");
    if template.is_null() {
        page.line(1, "<unset>");
        return;
    }
    let (metadata, spec) = (&template["metadata"], &template["spec"]);
    page.labels("  Labels", &metadata["labels"]);
    if metadata["annotations"].as_object().is_some_and(|map| !map.is_empty()) {
        page.annotations("  Annotations", &metadata["annotations"]);
    }
    optional(page, "  Service Account", &spec["serviceAccountName"]);
    if each(&spec["initContainers"]).next().is_some() {
        containers(page, "Init Containers", &spec["initContainers"], None, "  ");
    }
    containers(page, "Containers", &spec["containers"], None, "  ");
    volumes(page, &spec["volumes"], "  ");
    spread(page, "  Topology Spread Constraints", &spec["topologySpreadConstraints"]);
    optional(page, "  Priority Class Name", &spec["priorityClassName"]);
    page.labels("  Node-Selectors", &spec["nodeSelector"]);
    tolerations(page, "  Tolerations", &spec["tolerations"]);
}

fn containers(page: &mut Page, title: &str, list: &Value, statuses: Option<&Value>, space: &str) {
    let none = if each(list).next().is_none() { " <none>" } else { "" };
    page.line(0, format!("{space}{title}:{none}"));
    let indent = if space.is_empty() { "" } else { " " };
    for container in each(list) {
        page.line(1, format!("{indent}{}:", text(&container["name"])));
        let status = statuses.map(|list| each(list).find(|status| status["name"] == container["name"]));
        one(page, container, status.flatten());
    }
}

fn one(page: &mut Page, container: &Value, status: Option<&Value>) {
    if let Some(status) = status {
        page.pair(2, "Container ID", text(&status["containerID"]));
    }
    page.pair(2, "Image", text(&container["image"]));
    if let Some(status) = status {
        page.pair(2, "Image ID", text(&status["imageID"]));
    }
    for (title, key) in [("Port", "containerPort"), ("Host Port", "hostPort")] {
        let ports: Vec<String> = each(&container["ports"])
            .map(|port| format!("{}/{}", shown(&port[key], "0"), shown(&port["protocol"], "TCP")))
            .collect();
        match &ports[..] {
            [] => page.pair(2, title, "<none>"),
            [port] => page.pair(2, title, port),
            several => page.pair(2, &format!("{title}s"), several.join(", ")),
        }
    }
    for (title, key) in [("Command", "command"), ("Args", "args")] {
        if each(&container[key]).next().is_some() {
            page.line(2, format!("{title}:"));
            for word in each(&container[key]) {
                for line in text(word).split('\n') {
                    page.line(3, line);
                }
            }
        }
    }
    if let Some(status) = status {
        state(page, "State", &status["state"]);
        if status["lastState"]["terminated"].is_object() {
            state(page, "Last State", &status["lastState"]);
        }
        page.pair(2, "Ready", yes(status["ready"] == true));
        page.pair(2, "Restart Count", shown(&status["restartCount"], "0"));
    }
    for (title, key) in [("Limits", "limits"), ("Requests", "requests")] {
        let amounts = sorted(&container["resources"][key]);
        if !amounts.is_empty() {
            page.line(2, format!("{title}:"));
            for (name, amount) in amounts {
                page.pair(3, &name, amount);
            }
        }
    }
    for (title, key) in
        [("Liveness", "livenessProbe"), ("Readiness", "readinessProbe"), ("Startup", "startupProbe")]
    {
        if container[key].is_object() {
            page.pair(2, title, probe(&container[key]));
        }
    }
    environment(page, container);
    mounts(page, container);
}

fn state(page: &mut Page, title: &str, state: &Value) {
    let reason = |page: &mut Page, state: &Value| {
        if let Some(reason) = state["reason"].as_str().filter(|reason| !reason.is_empty()) {
            page.pair(3, "Reason", reason);
        }
    };
    if state["running"].is_object() {
        page.pair(2, title, "Running");
        page.pair(3, "Started", time(&state["running"]["startedAt"]));
    } else if state["terminated"].is_object() {
        let ended = &state["terminated"];
        page.pair(2, title, "Terminated");
        reason(page, ended);
        if let Some(message) = ended["message"].as_str().filter(|message| !message.is_empty()) {
            page.pair(3, "Message", message);
        }
        page.pair(3, "Exit Code", shown(&ended["exitCode"], "0"));
        if ended["signal"].as_i64().unwrap_or(0) > 0 {
            page.pair(3, "Signal", shown(&ended["signal"], "0"));
        }
        page.pair(3, "Started", time(&ended["startedAt"]));
        page.pair(3, "Finished", time(&ended["finishedAt"]));
    } else {
        page.pair(2, title, "Waiting");
        reason(page, &state["waiting"]);
    }
}

fn probe(probe: &Value) -> String {
    let number = |key: &str, default: i64| probe[key].as_i64().unwrap_or(default);
    let attributes = format!(
        "delay={}s timeout={}s period={}s #success={} #failure={}",
        number("initialDelaySeconds", 0),
        number("timeoutSeconds", 1),
        number("periodSeconds", 10),
        number("successThreshold", 1),
        number("failureThreshold", 3)
    );
    let what = if probe["exec"].is_object() {
        let words: Vec<String> = each(&probe["exec"]["command"]).map(text).collect();
        format!("exec [{}]", words.join(" "))
    } else if probe["httpGet"].is_object() {
        let get = &probe["httpGet"];
        let scheme = shown(&get["scheme"], "HTTP").to_lowercase();
        format!(
            "http-get {scheme}://{}:{}{}",
            text(&get["host"]),
            shown(&get["port"], ""),
            text(&get["path"])
        )
    } else if probe["tcpSocket"].is_object() {
        format!("tcp-socket {}:{}", text(&probe["tcpSocket"]["host"]), shown(&probe["tcpSocket"]["port"], ""))
    } else if probe["grpc"].is_object() {
        format!("grpc <pod>:{} {}", shown(&probe["grpc"]["port"], ""), text(&probe["grpc"]["service"]))
    } else {
        "unknown".to_owned()
    };
    format!("{what} {attributes}")
}

fn environment(page: &mut Page, container: &Value) {
    if each(&container["envFrom"]).next().is_some() {
        page.line(2, "Environment Variables from:");
        for source in each(&container["envFrom"]) {
            let (kind, reference) = if source["configMapRef"].is_object() {
                ("ConfigMap", &source["configMapRef"])
            } else {
                ("Secret", &source["secretRef"])
            };
            let prefix = match text(&source["prefix"]).as_str() {
                "" => String::new(),
                prefix => format!(" with prefix '{prefix}'"),
            };
            let optional = reference["optional"] == true;
            page.line(3, format!("{}\t{kind}{prefix}\tOptional: {optional}", text(&reference["name"])));
        }
    }
    if each(&container["env"]).next().is_none() {
        page.pair(2, "Environment", "<none>");
        return;
    }
    page.line(2, "Environment:");
    for variable in each(&container["env"]) {
        let name = text(&variable["name"]);
        let from = &variable["valueFrom"];
        if from["fieldRef"].is_object() {
            let field = &from["fieldRef"];
            page.pair(
                3,
                &name,
                format!(" ({}:{})", shown(&field["apiVersion"], "v1"), text(&field["fieldPath"])),
            );
        } else if from["resourceFieldRef"].is_object() {
            page.pair(3, &name, format!(" ({})", text(&from["resourceFieldRef"]["resource"])));
        } else if from["secretKeyRef"].is_object() {
            let key = &from["secretKeyRef"];
            let set = format!("<set to the key '{}' in secret '{}'>", text(&key["key"]), text(&key["name"]));
            page.pair(3, &name, format!("{set}\tOptional: {}", key["optional"] == true));
        } else if from["configMapKeyRef"].is_object() {
            let key = &from["configMapKeyRef"];
            let set =
                format!("<set to the key '{}' of config map '{}'>", text(&key["key"]), text(&key["name"]));
            page.pair(3, &name, format!("{set}\tOptional: {}", key["optional"] == true));
        } else {
            for (i, line) in text(&variable["value"]).split('\n').enumerate() {
                page.line(3, if i == 0 { format!("{name}:\t{line}") } else { format!("\t{line}") });
            }
        }
    }
}

fn mounts(page: &mut Page, container: &Value) {
    let mut list: Vec<&Value> = each(&container["volumeMounts"]).collect();
    list.sort_by_key(|mount| text(&mount["mountPath"]));
    if list.is_empty() {
        page.pair(2, "Mounts", "<none>");
    } else {
        page.line(2, "Mounts:");
    }
    for mount in list {
        let mut flags = vec![if mount["readOnly"] == true { "ro".to_owned() } else { "rw".to_owned() }];
        if let Some(path) = mount["subPath"].as_str().filter(|path| !path.is_empty()) {
            flags.push(format!("path={}", apimachinery::go::quote(path)));
        }
        page.line(
            3,
            format!("{} from {} ({})", text(&mount["mountPath"]), text(&mount["name"]), flags.join(",")),
        );
    }
    if each(&container["volumeDevices"]).next().is_some() {
        page.line(2, "Devices:");
        for device in each(&container["volumeDevices"]) {
            page.line(3, format!("{} from {}", text(&device["devicePath"]), text(&device["name"])));
        }
    }
}

fn volumes(page: &mut Page, list: &Value, space: &str) {
    if each(list).next().is_none() {
        page.pair(0, &format!("{space}Volumes"), "<none>");
        return;
    }
    page.line(0, format!("{space}Volumes:"));
    let indent = if space.is_empty() { "" } else { " " };
    for volume in each(list) {
        page.line(1, format!("{indent}{}:", text(&volume["name"])));
        source(page, volume);
    }
}

fn source(page: &mut Page, volume: &Value) {
    let optional = |source: &Value| source["optional"] == true;
    let read_only = |source: &Value| source["readOnly"] == true;
    let has = |key: &str| volume[key].is_object();
    if has("emptyDir") {
        page.pair(2, "Type", "EmptyDir (a temporary directory that shares a pod's lifetime)");
        page.pair(2, "Medium", text(&volume["emptyDir"]["medium"]));
        page.pair(2, "SizeLimit", shown(&volume["emptyDir"]["sizeLimit"], "<unset>"));
    } else if has("hostPath") {
        page.pair(2, "Type", "HostPath (bare host directory volume)");
        page.pair(2, "Path", text(&volume["hostPath"]["path"]));
        page.pair(2, "HostPathType", text(&volume["hostPath"]["type"]));
    } else if has("secret") {
        page.pair(2, "Type", "Secret (a volume populated by a Secret)");
        page.pair(2, "SecretName", text(&volume["secret"]["secretName"]));
        page.pair(2, "Optional", optional(&volume["secret"]));
    } else if has("configMap") {
        page.pair(2, "Type", "ConfigMap (a volume populated by a ConfigMap)");
        page.pair(2, "Name", text(&volume["configMap"]["name"]));
        page.pair(2, "Optional", optional(&volume["configMap"]));
    } else if has("persistentVolumeClaim") {
        let claim = &volume["persistentVolumeClaim"];
        page.pair(
            2,
            "Type",
            "PersistentVolumeClaim (a reference to a PersistentVolumeClaim in the same namespace)",
        );
        page.pair(2, "ClaimName", text(&claim["claimName"]));
        page.pair(2, "ReadOnly", read_only(claim));
    } else if has("nfs") {
        page.pair(2, "Type", "NFS (an NFS mount that lasts the lifetime of a pod)");
        page.pair(2, "Server", text(&volume["nfs"]["server"]));
        page.pair(2, "Path", text(&volume["nfs"]["path"]));
        page.pair(2, "ReadOnly", read_only(&volume["nfs"]));
    } else if has("csi") {
        page.pair(2, "Type", "CSI (a Container Storage Interface (CSI) volume source)");
        page.pair(2, "Driver", text(&volume["csi"]["driver"]));
        page.pair(2, "FSType", text(&volume["csi"]["fsType"]));
        page.pair(2, "ReadOnly", read_only(&volume["csi"]));
    } else if has("downwardAPI") {
        page.pair(2, "Type", "DownwardAPI (a volume populated by information about the pod)");
        page.line(2, "Items:");
        for item in each(&volume["downwardAPI"]["items"]) {
            page.line(3, format!("{} -> {}", text(&item["fieldRef"]["fieldPath"]), text(&item["path"])));
        }
    } else if has("projected") {
        page.pair(2, "Type", "Projected (a volume that contains injected data from multiple sources)");
        for part in each(&volume["projected"]["sources"]) {
            if part["secret"].is_object() {
                page.pair(2, "SecretName", text(&part["secret"]["name"]));
                page.pair(2, "Optional", optional(&part["secret"]));
            } else if part["downwardAPI"].is_object() {
                page.pair(2, "DownwardAPI", "true");
            } else if part["configMap"].is_object() {
                page.pair(2, "ConfigMapName", text(&part["configMap"]["name"]));
                page.pair(2, "Optional", optional(&part["configMap"]));
            } else if part["serviceAccountToken"].is_object() {
                page.pair(
                    2,
                    "TokenExpirationSeconds",
                    shown(&part["serviceAccountToken"]["expirationSeconds"], "3600"),
                );
            }
        }
    } else {
        // Rare kinds are described by their name.
        let kind = volume.as_object().into_iter().flatten().map(|(key, _)| key).find(|key| *key != "name");
        page.pair(2, "Type", kind.map_or("<unknown>", String::as_str));
    }
}

fn tolerations(page: &mut Page, title: &str, list: &Value) {
    let mut lines: Vec<String> = each(list)
        .map(|toleration| {
            let mut line = text(&toleration["key"]);
            if let Some(value) = toleration["value"].as_str().filter(|value| !value.is_empty()) {
                line.push_str(&format!("={value}"));
            }
            if let Some(effect) = toleration["effect"].as_str().filter(|effect| !effect.is_empty()) {
                line.push_str(&format!(":{effect}"));
            }
            // Without a value, the operator carries the meaning.
            if toleration["operator"] == "Exists" && text(&toleration["value"]).is_empty() {
                line.push_str(
                    if text(&toleration["key"]).is_empty() && text(&toleration["effect"]).is_empty() {
                        "op=Exists"
                    } else {
                        " op=Exists"
                    },
                );
            }
            if let Some(seconds) = toleration["tolerationSeconds"].as_i64() {
                line.push_str(&format!(" for {seconds}s"));
            }
            line
        })
        .collect();
    lines.sort();
    page.list(title, &lines);
}

fn spread(page: &mut Page, title: &str, list: &Value) {
    let lines: Vec<String> = each(list)
        .map(|constraint| {
            let mut line = format!(
                "{}:{} when max skew {} is exceeded",
                text(&constraint["topologyKey"]),
                text(&constraint["whenUnsatisfiable"]),
                shown(&constraint["maxSkew"], "1")
            );
            if constraint["labelSelector"].is_object() {
                line.push_str(&format!(
                    " for selector {}",
                    joined(&constraint["labelSelector"]["matchLabels"])
                ));
            }
            line
        })
        .collect();
    if !lines.is_empty() {
        page.list(title, &lines);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_is_laid_out_as_kubectl_does_it() {
        let object = json!({"metadata": {"name": "web", "namespace": "ns"}, "spec": {"priority": 0, "nodeName": "n1",
            "containers": [{"name": "a", "image": "i", "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "readinessProbe": {"httpGet": {"path": "/x", "port": 80}},
                "env": [{"name": "K", "value": "V"}, {"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}],
            "tolerations": [{"key": "k", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}]},
            "status": {"phase": "Running", "hostIP": "1.2.3.4", "podIP": "5.6.7.8", "podIPs": [{"ip": "5.6.7.8"}], "containerStatuses": [
                {"name": "a", "ready": true, "restartCount": 1, "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]}});
        let mut page = Page::default();
        pod(&mut page, &object);
        let text = page.finish();
        for line in [
            "Node:         n1/1.2.3.4\n",
            "    State:          Waiting\n      Reason:       CrashLoopBackOff\n    Ready:          True\n    Restart Count:  1\n",
            "    Readiness:      http-get http://:80/x delay=0s timeout=1s period=10s #success=1 #failure=3\n",
            "<set to the key 'k' in secret 's'>  Optional: false\n",
            "k:NoExecute op=Exists for 300s\n",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
    }
}
