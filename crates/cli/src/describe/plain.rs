//! Any object, field by field, in words.

use serde_json::Value;

use super::words::Page;

pub(super) fn any(page: &mut Page, object: &Value) {
    let metadata = &object["metadata"];
    page.pair(0, "Name", text(&metadata["name"]));
    page.pair(0, "Namespace", text(&metadata["namespace"]));
    page.labels("Labels", &metadata["labels"]);
    page.annotations("Annotations", &metadata["annotations"]);
    let mut rest = object.clone();
    if let Some(map) = rest["metadata"].as_object_mut() {
        for known in ["name", "namespace", "labels", "annotations", "managedFields"] {
            map.remove(known);
        }
    }
    fields(page, 0, &rest);
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("")
}

fn fields(page: &mut Page, level: usize, object: &Value) {
    let mut entries: Vec<(String, &Value)> =
        object.as_object().into_iter().flatten().map(|(key, value)| (title(key), value)).collect();
    entries.sort_by(|one, other| one.0.cmp(&other.0));
    for (key, value) in entries {
        match value {
            Value::Object(_) => {
                page.line(level, format!("{key}:"));
                fields(page, level + 1, value);
            }
            Value::Array(items) => {
                page.line(level, format!("{key}:"));
                for item in items {
                    if item.is_object() {
                        fields(page, level + 1, item);
                    } else {
                        page.line(level + 1, apimachinery::jsonpath::print(item));
                    }
                }
            }
            Value::Null => page.pair(level, &key, "<nil>"),
            other => page.pair(level, &key, apimachinery::jsonpath::print(other)),
        }
    }
}

/// `resourceVersion` becomes `Resource Version`; names with characters other than letters and dashes stay unchanged.
fn title(key: &str) -> String {
    if !key.chars().all(|c| c.is_alphabetic() || c == '-') {
        return key.to_owned();
    }
    let class = |c: char| {
        if c.is_lowercase() {
            0
        } else if c.is_uppercase() {
            1
        } else {
            2
        }
    };
    let mut words: Vec<String> = Vec::new();
    for c in key.chars() {
        match words.last_mut() {
            Some(word) if word.chars().last().is_some_and(|last| class(last) == class(c)) => word.push(c),
            _ => words.push(c.to_string()),
        }
    }
    // The last of several capitals begins the next word.
    for i in 0..words.len().saturating_sub(1) {
        let upper = words[i].chars().all(char::is_uppercase);
        if upper
            && words[i + 1].starts_with(char::is_lowercase)
            && let Some(last) = words[i].pop()
        {
            words[i + 1].insert(0, last);
        }
    }
    words.retain(|word| !word.is_empty());
    let shown = words.iter().map(|word| match word.to_uppercase().as_str() {
        // Abbreviations that kubectl knows.
        known @ ("API" | "URL" | "UID" | "OSB" | "GUID") => known.to_owned(),
        _ => {
            let mut letters = word.chars();
            letters.next().map(|first| first.to_uppercase().chain(letters).collect()).unwrap_or_default()
        }
    });
    shown.collect::<Vec<String>>().join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_is_told_in_words() {
        let object = json!({"apiVersion": "policy.karmada.io/v1alpha1", "kind": "PropagationPolicy",
            "metadata": {"name": "n", "namespace": "ns", "labels": {"a": "1", "b": "2"}, "uid": "u", "managedFields": []},
            "spec": {"preemption": "Never", "clusterNames": ["m1", "m2"], "list": [{"x": 1}]}});
        let mut page = Page::default();
        any(&mut page, &object);
        assert_eq!(
            page.finish(),
            "Name:         n\nNamespace:    ns\nLabels:       a=1\n              b=2\nAnnotations:  <none>\n\
             API Version:  policy.karmada.io/v1alpha1\nKind:         PropagationPolicy\nMetadata:\n  UID:  u\nSpec:\n  \
             Cluster Names:\n    m1\n    m2\n  List:\n    X:         1\n  Preemption:  Never\n"
        );
        assert_eq!(title("creationTimestamp"), "Creation Timestamp");
        assert_eq!(title("app.io/x"), "app.io/x");
        assert_eq!(title("ephemeral-storage"), "Ephemeral - Storage");
        assert_eq!(title("apiVersion"), "API Version");
        assert_eq!(title("podIPs"), "Pod I Ps", "kubectl's own way");
    }
}
