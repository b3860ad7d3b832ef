//! Config maps, secrets, service accounts, namespaces, quotas, bounds, budgets and priority classes.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use super::words::{Page, each, selector, shown, sorted, text};
use crate::select::list;
use crate::server::{Server, segment};

fn named(page: &mut Page, object: &Value) {
    page.pair(0, "Name", text(&object["metadata"]["name"]));
    page.pair(0, "Namespace", text(&object["metadata"]["namespace"]));
}

fn marks(page: &mut Page, object: &Value) {
    page.labels("Labels", &object["metadata"]["labels"]);
    page.annotations("Annotations", &object["metadata"]["annotations"]);
}

fn size(text: &str) -> usize {
    STANDARD.decode(text).map_or(0, |bytes| bytes.len())
}

pub(super) fn config_map(page: &mut Page, object: &Value) {
    named(page, object);
    marks(page, object);
    page.line(0, "\nData\n====");
    for (key, value) in sorted(&object["data"]) {
        page.line(0, format!("{key}:\n----\n{value}\n"));
    }
    page.line(0, "\nBinaryData\n====");
    for (key, value) in sorted(&object["binaryData"]) {
        page.line(0, format!("{key}: {} bytes", size(&value)));
    }
    page.line(0, "");
}

/// Sizes, not values. Only tokens of accounts are shown.
pub(super) fn secret(page: &mut Page, object: &Value) {
    named(page, object);
    marks(page, object);
    page.line(0, format!("\nType:\t{}\n\nData\n====", text(&object["type"])));
    for (key, value) in sorted(&object["data"]) {
        if key == "token" && object["type"] == "kubernetes.io/service-account-token" {
            let token = STANDARD.decode(&value).unwrap_or_default();
            page.pair(0, &key, String::from_utf8_lossy(&token));
        } else {
            page.pair(0, &key, format!("{} bytes", size(&value)));
        }
    }
}

pub(super) fn service_account(page: &mut Page, object: &Value) {
    named(page, object);
    marks(page, object);
    let names = |list: &Value| -> Vec<String> { each(list).map(|item| text(&item["name"])).collect() };
    page.list("Image pull secrets", &names(&object["imagePullSecrets"]));
    if each(&object["secrets"]).next().is_some() {
        page.list("Mountable secrets", &names(&object["secrets"]));
    }
}

/// The quotas and limit ranges of a namespace.
pub(super) struct Limits {
    quotas: Vec<Value>,
    ranges: Vec<Value>,
}

pub(super) async fn quotas(server: &Server, namespace: &str) -> Limits {
    let path = |kind: &str| format!("/api/v1/namespaces/{}/{kind}", segment(namespace));
    Limits {
        quotas: list(server, &path("resourcequotas"), None, None).await.unwrap_or_default(),
        ranges: list(server, &path("limitranges"), None, None).await.unwrap_or_default(),
    }
}

pub(super) fn namespace(page: &mut Page, object: &Value, limits: &Limits) {
    page.pair(0, "Name", text(&object["metadata"]["name"]));
    marks(page, object);
    page.pair(0, "Status", text(&object["status"]["phase"]));
    if each(&object["status"]["conditions"]).next().is_some() {
        page.line(0, "Conditions:");
        page.line(1, "Type\tStatus\tLastTransitionTime\tReason\tMessage");
        page.line(1, "----\t------\t------------------\t------\t-------");
        for condition in each(&object["status"]["conditions"]) {
            page.line(
                1,
                format!(
                    "{}\t{}\t{}\t{}\t{}",
                    text(&condition["type"]),
                    text(&condition["status"]),
                    super::words::time(&condition["lastTransitionTime"]),
                    text(&condition["reason"]),
                    text(&condition["message"])
                ),
            );
        }
    }
    page.line(0, "");
    if limits.quotas.is_empty() {
        page.line(0, "No resource quota.");
    } else {
        page.line(0, "Resource Quotas");
        for quota in &limits.quotas {
            page.pair(1, "Name", text(&quota["metadata"]["name"]));
            amounts(page, quota, 1);
        }
    }
    page.line(0, "");
    if limits.ranges.is_empty() {
        page.line(0, "No LimitRange resource.");
        return;
    }
    page.line(0, "Resource Limits");
    page.line(0, " Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio");
    page.line(0, " ----\t--------\t---\t---\t---------------\t-------------\t-----------------------");
    for limit in limits.ranges.iter().flat_map(|range| each(&range["spec"]["limits"])) {
        let keys = ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"];
        let mut resources: Vec<String> =
            keys.iter().flat_map(|key| sorted(&limit[*key])).map(|(name, _)| name).collect();
        resources.sort();
        resources.dedup();
        for resource in resources {
            let cells: Vec<String> = keys.iter().map(|key| shown(&limit[*key][&resource], "-")).collect();
            page.line(0, format!(" {}\t{resource}\t{}", text(&limit["type"]), cells.join("\t")));
        }
    }
}

pub(super) fn quota(page: &mut Page, object: &Value) {
    named(page, object);
    let scopes: Vec<String> = each(&object["spec"]["scopes"]).map(text).collect();
    if !scopes.is_empty() {
        page.pair(0, "Scopes", scopes.join(", "));
    }
    amounts(page, object, 0);
}

fn amounts(page: &mut Page, quota: &Value, level: usize) {
    page.line(level, "Resource\tUsed\tHard");
    // Within a namespace, one of the rulers is shorter.
    page.line(level, if level == 0 { "--------\t----\t----" } else { "--------\t---\t---" });
    for (name, hard) in sorted(&quota["status"]["hard"]) {
        page.line(level, format!("{name}\t{}\t{hard}", shown(&quota["status"]["used"][&name], "0")));
    }
}

pub(super) fn budget(page: &mut Page, object: &Value) {
    named(page, object);
    let (spec, status) = (&object["spec"], &object["status"]);
    if !spec["minAvailable"].is_null() {
        page.pair(0, "Min available", shown(&spec["minAvailable"], ""));
    } else if !spec["maxUnavailable"].is_null() {
        page.pair(0, "Max unavailable", shown(&spec["maxUnavailable"], ""));
    }
    page.pair(
        0,
        "Selector",
        if spec["selector"].is_object() { selector(&spec["selector"]) } else { "<unset>".into() },
    );
    page.line(0, "Status:");
    for (title, key) in [
        ("Allowed disruptions", "disruptionsAllowed"),
        ("Current", "currentHealthy"),
        ("Desired", "desiredHealthy"),
        ("Total", "expectedPods"),
    ] {
        page.pair(2, title, shown(&status[key], "0"));
    }
}

pub(super) fn priority_class(page: &mut Page, object: &Value) {
    page.pair(0, "Name", text(&object["metadata"]["name"]));
    page.pair(0, "Value", shown(&object["value"], "0"));
    page.pair(0, "GlobalDefault", object["globalDefault"] == true);
    page.pair(0, "PreemptionPolicy", shown(&object["preemptionPolicy"], "PreemptLowerPriority"));
    page.pair(0, "Description", text(&object["description"]));
    page.annotations("Annotations", &object["metadata"]["annotations"]);
}

/// The limits of a namespace: one row for each type and resource.
pub(super) fn limits(page: &mut Page, object: &Value) {
    named(page, object);
    page.line(0, "Type\tResource\tMin\tMax\tDefault Request\tDefault Limit\tMax Limit/Request Ratio");
    page.line(0, "----\t--------\t---\t---\t---------------\t-------------\t-----------------------");
    for limit in each(&object["spec"]["limits"]) {
        let columns =
            ["min", "max", "defaultRequest", "default", "maxLimitRequestRatio"].map(|key| &limit[key]);
        let mut resources: Vec<String> =
            columns.iter().flat_map(|column| sorted(column)).map(|(name, _)| name).collect();
        resources.sort();
        resources.dedup();
        for resource in resources {
            let cells = columns.map(|column| shown(&column[resource.as_str()], "-"));
            page.line(0, format!("{}\t{resource}\t{}", text(&limit["type"]), cells.join("\t")));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_told_by_their_size() {
        let object =
            json!({"metadata": {"name": "s", "namespace": "n"}, "type": "Opaque", "data": {"a": "aGVsbG8="}});
        let mut page = Page::default();
        secret(&mut page, &object);
        let text = page.finish();
        assert!(text.ends_with("\nType:  Opaque\n\nData\n====\na:  5 bytes\n"), "{text}");
        assert!(!text.contains("hello"));
    }

    #[test]
    fn config_maps_are_told_in_full() {
        let object = json!({"metadata": {"name": "c", "namespace": "n"}, "data": {"a": "x\ny"}, "binaryData": {"b": "AAE="}});
        let mut page = Page::default();
        config_map(&mut page, &object);
        let text = page.finish();
        assert!(
            text.ends_with("\n\nData\n====\na:\n----\nx\ny\n\n\nBinaryData\n====\nb: 2 bytes\n\n"),
            "{text}"
        );
    }
}
