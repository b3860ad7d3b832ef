//! Roles and their bindings.

use serde_json::Value;

use super::words::{Page, each, text};

fn head(page: &mut Page, object: &Value) {
    page.pair(0, "Name", text(&object["metadata"]["name"]));
    page.labels("Labels", &object["metadata"]["labels"]);
    page.annotations("Annotations", &object["metadata"]["annotations"]);
}

fn texts(list: &Value) -> Vec<String> {
    each(list).map(text).collect()
}

/// One line of a role: its resources or paths, the names, the verbs.
#[derive(Debug, PartialEq, Eq)]
struct Line {
    resource: String,
    paths: Vec<String>,
    names: Vec<String>,
    verbs: Vec<String>,
}

impl Line {
    /// Go's text of the rule; lines are ordered by it.
    fn key(&self) -> String {
        let (plural, part) = self.resource.split_once('/').unwrap_or((&self.resource, ""));
        let (plural, group) = plural.split_once('.').unwrap_or((plural, ""));
        let resource = if part.is_empty() { plural.to_owned() } else { format!("{plural}/{part}") };
        format!(
            "&PolicyRule{{Verbs:[{}],APIGroups:[{group}],Resources:[{resource}],ResourceNames:[{}],NonResourceURLs:[{}],}}",
            self.verbs.join(" "),
            self.names.join(" "),
            self.paths.join(" ")
        )
    }
}

pub(super) fn role(page: &mut Page, object: &Value) {
    head(page, object);
    page.line(0, "PolicyRule:");
    page.line(1, "Resources\tNon-Resource URLs\tResource Names\tVerbs");
    page.line(1, "---------\t-----------------\t--------------\t-----");
    for line in lines(&object["rules"]) {
        let list = |texts: &[String]| format!("[{}]", texts.join(" "));
        page.line(
            1,
            format!("{}\t{}\t{}\t{}", line.resource, list(&line.paths), list(&line.names), list(&line.verbs)),
        );
    }
}

/// Rules, split into one resource each; those that differ only in verbs are merged.
fn lines(rules: &Value) -> Vec<Line> {
    let mut lines: Vec<Line> = Vec::new();
    for rule in each(rules) {
        let verbs = texts(&rule["verbs"]);
        let mut add = |resource: String, paths: Vec<String>, names: Vec<String>| match lines
            .iter_mut()
            .find(|line| line.resource == resource && line.paths == paths && line.names == names)
        {
            Some(line) => {
                let fresh: Vec<String> =
                    verbs.iter().filter(|verb| !line.verbs.contains(verb)).cloned().collect();
                line.verbs.extend(fresh);
            }
            None => lines.push(Line { resource, paths, names, verbs: verbs.clone() }),
        };
        for path in texts(&rule["nonResourceURLs"]) {
            add(String::new(), vec![path], Vec::new());
        }
        for group in texts(&rule["apiGroups"]) {
            for resource in texts(&rule["resources"]) {
                let (plural, part) = resource.split_once('/').unwrap_or((&resource, ""));
                let plural = if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") };
                let name = if part.is_empty() { plural } else { format!("{plural}/{part}") };
                let names = texts(&rule["resourceNames"]);
                if names.is_empty() {
                    add(name, Vec::new(), Vec::new());
                } else {
                    for each in names {
                        add(name.clone(), Vec::new(), vec![each]);
                    }
                }
            }
        }
    }
    lines.sort_by_key(Line::key);
    lines
}

pub(super) fn binding(page: &mut Page, object: &Value) {
    head(page, object);
    page.line(0, "Role:");
    page.pair(1, "Kind", text(&object["roleRef"]["kind"]));
    page.pair(1, "Name", text(&object["roleRef"]["name"]));
    page.line(0, "Subjects:");
    page.line(1, "Kind\tName\tNamespace");
    page.line(1, "----\t----\t---------");
    for subject in each(&object["subjects"]) {
        let (kind, name, namespace) =
            (text(&subject["kind"]), text(&subject["name"]), text(&subject["namespace"]));
        page.line(1, format!("{kind}\t{name}\t{namespace}"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_told_one_resource_at_a_time() {
        let rules = json!([
            {"apiGroups": ["apps"], "resources": ["deployments", "deployments/scale"], "verbs": ["get"]},
            {"apiGroups": ["apps"], "resources": ["deployments"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["pods"], "resourceNames": ["a"], "verbs": ["*"]},
            {"nonResourceURLs": ["/x"], "verbs": ["get"]},
        ]);
        let told: Vec<String> = lines(&rules)
            .iter()
            .map(|line| format!("{}{:?}{:?} {}", line.resource, line.paths, line.names, line.verbs.join(" ")))
            .collect();
        assert_eq!(
            told,
            [
                "pods[][\"a\"] *",
                "deployments.apps[][] get list",
                "[\"/x\"][] get",
                "deployments.apps/scale[][] get",
            ]
        );
    }
}
