//! Queries over the fleet, and the versions and tokens that clients send back: any user may ask.

use std::sync::{Arc, LazyLock};

use apimachinery::gvk::Gvk;
use fleet::query::{Answer, Order, Page, Query, Row, run};
use fleet::version::{Continue, Versions};
use fleet::{Cache, Entry, Kind, Place};
use jiff::Timestamp;
use runtime::room::Budget;
use serde_json::json;

/// Pods, Deployments and namespaces in three clusters; what is in `hidden` may not be seen.
static CACHES: LazyLock<Vec<Arc<Cache>>> = LazyLock::new(|| {
    let kinds = [
        Kind::new(&Gvk::new("", "v1", "Namespace"), "namespaces", false),
        Kind::new(&Gvk::new("", "v1", "Pod"), "pods", true),
        Kind::new(&Gvk::new("apps", "v1", "Deployment"), "deployments", true),
    ];
    let cache = |kind: Kind| {
        let cache = Cache::new(kind.clone(), Arc::new(Budget::new(1 << 20)));
        for (index, cluster) in ["eu-1", "hidden", "us-1"].into_iter().enumerate() {
            let place = Place::cluster(cluster);
            cache.expect(&place);
            let objects = (0..5 + index).map(|number| {
                let namespace = if number % 2 == 0 { "shop" } else { "bank" };
                let mut metadata = json!({
                    "name": format!("p{number}"), "resourceVersion": "1",
                    "creationTimestamp": format!("2026-01-01T00:{number:02}:00Z"),
                    "labels": {"number": number.to_string(), "app": "web"},
                });
                if kind.namespaced {
                    metadata["namespace"] = json!(namespace);
                }
                let containers =
                    json!([{"name": "a", "image": format!("nginx:v{}", number % 2)}, {"image": "ü"}]);
                let object = json!({
                    "metadata": metadata, "spec": {"nodeName": "n1", "replicas": 1, "containers": containers},
                    "status": {"phase": if number % 3 == 0 { "Pending" } else { "Running" }},
                });
                Entry::new(&kind, object).expect("an object")
            });
            cache.replace(&place, 7, objects.collect()).expect("there is room");
        }
        Arc::new(cache)
    };
    kinds.into_iter().map(cache).collect()
});

/// Lines: the query, the order, a token or version of a client.
pub(super) fn ask(input: &[u8]) -> String {
    let Ok(text) = std::str::from_utf8(input) else { return "not UTF-8".to_owned() };
    let mut lines = text.split('\n');
    let mut line = || lines.next().unwrap_or_default();
    let (text, order, token) = (line(), line(), line());
    let mut told = tokens(token);
    let order = Order::parse(order).unwrap_or_default();
    let query = match Query::parse(text) {
        Ok(query) => query,
        Err(error) => {
            let error = error.to_string();
            // Escapes make ten bytes of one.
            assert!(error.len() <= 10 * text.len() + 200, "{} bytes", error.len());
            return told + &error;
        }
    };
    assert!(text.len() <= 4096, "{} bytes", text.len());
    let whole = match page(&query, &Page { order, ..Page::default() }) {
        Ok(answer) => answer,
        Err(error) => return told + &error,
    };
    assert!(whole.next.is_none());
    for row in &whole.rows {
        assert_ne!(&*row.found.place.cluster, "hidden", "{text:?}");
        assert!(query.wants_cluster(&row.found.place.cluster), "{text:?}");
        // Users who may read the namespace that is asked about must not see others.
        if let Some(namespace) = query.namespace()
            && row.cache.kind.namespaced
        {
            assert_eq!(row.found.entry.namespace(), namespace, "{text:?}");
        }
    }
    let mut rows = Vec::new();
    let mut wanted = Page { order, limit: 1 + text.len() % 5, after: String::new() };
    loop {
        let answer = page(&query, &wanted).expect("the whole was answered");
        assert!(answer.rows.len() <= wanted.limit, "{text:?}");
        rows.extend(answer.rows);
        assert!(rows.len() <= whole.rows.len(), "{text:?} never ends");
        let Some(next) = answer.next else { break };
        wanted.after = next;
    }
    assert_eq!(names(&rows), names(&whole.rows), "{text:?}");
    // A token that a client made up is refused, or begins somewhere.
    let odd = page(&query, &Page { order, limit: 3, after: token.to_owned() });
    told.push_str(if odd.is_ok() { " begins" } else { " refused" });
    format!("{told} {}", whole.rows.len())
}

fn page(query: &Query, page: &Page) -> Result<Answer, String> {
    let now: Timestamp = "2026-01-01T00:10:00Z".parse().expect("a time");
    let caches: Vec<Arc<Cache>> =
        CACHES.iter().filter(|cache| query.wants_kind(&cache.kind, &["po".to_owned()])).cloned().collect();
    run(query, &caches, |_, cluster| cluster != "hidden", now, page)
}

fn names(rows: &[Row]) -> Vec<String> {
    let name = |row: &Row| format!("{} {} {}", row.cache.kind.plural, row.found.place, row.found.entry.key());
    rows.iter().map(name).collect()
}

/// Reads versions and continue tokens: what is printed and read again is the same.
fn tokens(text: &str) -> String {
    // What is escaped is longer when it is printed, and a version has a limit.
    let text = if text.len() > 4096 { "" } else { text };
    let versions = Versions::parse(text);
    assert_eq!(Versions::parse(&versions.to_string()), versions, "{text:?}");
    let place = Place::cluster("m1");
    if let Some(revision) = Versions::of_object(text, &place, "shop") {
        assert_ne!(revision, 0, "{text:?}: to a member, 0 would mean any version");
    }
    // Whatever is known of a place, what is said beside an object of it is understood again.
    let beside = versions.around(&place).there(7);
    assert_eq!(Versions::of_object(&beside, &place, ""), Some(7), "{text:?}");
    let next = Continue::parse(text);
    if let Some(next) = &next {
        assert_eq!(Continue::parse(&next.to_string()).as_ref(), Some(next), "{text:?}");
    }
    format!("{} {} ", versions.is_empty(), next.is_some())
}
