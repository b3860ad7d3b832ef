//! The OpenAPI documents: the recorded ones of the native kinds, merged with the current custom kinds.
//!
//! Documents are large and rarely requested. They are unpacked and merged for each request, on another thread. The digests in the
//! index are cached until the definitions change.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Weak};

use http::header::{CACHE_CONTROL, ETAG, EXPIRES, HeaderValue, IF_NONE_MATCH, LOCATION, VARY};
use http::{Response, StatusCode, header};
use parking_lot::Mutex;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha512};

use crate::handlers::context::Context;
use crate::handlers::{GZIP_FROM, mark_gzip, wants_gzip};
use crate::http::body::{self, Body};
use crate::http::respond;
use crate::limits::Work;
use crate::openapi_custom;
use crate::openapi_pieces::Pieces;
use crate::registry::custom::Version;
use crate::registry::{Custom, Registry};
use crate::server::Server;

/// The digests of the v3 documents, for one state of the registry.
static DIGESTS: Mutex<Option<Digests>> = Mutex::new(None);

struct Digests {
    registry: Weak<Registry>,
    by_path: HashMap<String, String>,
}

/// The parts of a request that determine the answer.
struct Asked {
    path: String,
    accept: String,
    known: Option<String>,
    hash: Option<String>,
    gzip: bool,
}

impl Asked {
    fn of(context: &Context) -> Self {
        Self {
            path: context.info.path.trim_matches('/').to_owned(),
            accept: context.header(header::ACCEPT).unwrap_or("").to_owned(),
            known: context.header(IF_NONE_MATCH).map(str::to_owned),
            hash: context.query.get("hash").filter(|hash| !hash.is_empty()).map(str::to_owned),
            gzip: wants_gzip(context),
        }
    }
}

/// Answers a request for a document or for the index.
pub(crate) async fn answer(server: &Server, context: &Context) -> Response<Body> {
    let (registry, asked) = (server.registry.load_full(), Asked::of(context));
    let rendered = server.limits.in_background(Work::Document, &context.user, 1, async move {
        match asked.path.as_str() {
            "openapi/v3" => v3_index(&registry),
            path => match path.strip_prefix("openapi/v3/") {
                Some(document) => v3(&registry, &asked, document),
                None => v2(&registry, &asked),
            },
        }
    });
    rendered.await.unwrap_or_else(|status| respond::error(&status))
}

/// Returns the index of the v3 documents.
fn v3_index(registry: &Arc<Registry>) -> Response<Body> {
    let mut paths: Vec<String> = registry
        .groups()
        .iter()
        .flat_map(|group| {
            group.versions.iter().map(|version| {
                if group.name.is_empty() {
                    format!("api/{version}")
                } else {
                    format!("apis/{}/{version}", group.name)
                }
            })
        })
        .collect();
    paths.extend(native::openapi::v3_paths().map(str::to_owned));
    paths.sort();
    paths.dedup();
    let digests = digests(registry, &paths);
    let entries: Map<String, Value> = paths
        .into_iter()
        .filter_map(|path| {
            let digest = digests.get(&path)?;
            Some((path.clone(), json!({"serverRelativeURL": format!("/openapi/v3/{path}?hash={digest}")})))
        })
        .collect();
    let document = json!({"paths": entries});
    respond::bytes_of(200, document.to_string(), "text/plain; charset=utf-8")
}

/// Answers a request for one v3 document.
fn v3(registry: &Registry, asked: &Asked, path: &str) -> Response<Body> {
    let Some(document) = v3_document(registry, path) else {
        return respond::text(404, "404 page not found\n");
    };
    let digest = digest(&document);
    if let Some(hash) = &asked.hash
        && *hash != digest
    {
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
        if let Ok(location) = HeaderValue::from_str(&format!("/openapi/v3/{path}?hash={digest}")) {
            response.headers_mut().insert(LOCATION, location);
        }
        return response;
    }
    let mut response = negotiated(asked, document, &digest, "application/json");
    if asked.hash.is_some() {
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
        let year = crate::clock::after(jiff::Timestamp::now(), 365 * 24 * 60 * 60);
        if let Ok(expires) = HeaderValue::from_str(&year.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()) {
            headers.insert(EXPIRES, expires);
        }
    }
    response
}

/// Answers a request for the v2 document, as JSON or as gnostic protobuf.
fn v2(registry: &Registry, asked: &Asked) -> Response<Body> {
    let protobuf = asked.accept.contains("application/com.github.proto-openapi.spec.v2")
        || asked.path.ends_with("swagger-2.0.0.pb-v1");
    let document = v2_document(registry);
    let digest = digest(&document);
    if protobuf {
        let tree: Value = match serde_json::from_slice(&document) {
            Ok(tree) => tree,
            Err(error) => return respond::error(&apimachinery::status::Status::internal(error)),
        };
        let bytes = crate::gnostic::encode(&tree);
        return negotiated(
            asked,
            bytes,
            &digest,
            "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
        );
    }
    negotiated(asked, document, &digest, "application/json")
}

fn negotiated(asked: &Asked, document: Vec<u8>, digest: &str, content_type: &'static str) -> Response<Body> {
    let tag = format!("\"{digest}\"");
    let mut response = if asked.known.as_ref() == Some(&tag) {
        let mut response = Response::new(body::empty());
        *response.status_mut() = StatusCode::NOT_MODIFIED;
        response
    } else if asked.gzip && document.len() > GZIP_FROM {
        use std::io::Write;
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        encoder.write_all(&document).expect("memory takes what is written");
        let packed = encoder.finish().expect("memory takes what is written");
        let mut response = respond::bytes_of(200, packed, content_type);
        mark_gzip(&mut response);
        response
    } else {
        respond::bytes_of(200, document, content_type)
    };
    let headers = response.headers_mut();
    headers.append(VARY, HeaderValue::from_static("Accept"));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(ETAG, tag);
    }
    response
}

fn digest(document: &[u8]) -> String {
    hex::encode_upper(Sha512::digest(document))
}

fn digests(registry: &Arc<Registry>, paths: &[String]) -> HashMap<String, String> {
    let same = |known: &&Digests| std::ptr::eq(known.registry.as_ptr(), Arc::as_ptr(registry));
    if let Some(known) = DIGESTS.lock().as_ref().filter(same) {
        return known.by_path.clone();
    }
    let digest_of = |path: &String| {
        let custom =
            group_version(path).is_some_and(|(group, version)| !customs(registry, group, version).is_empty());
        let digest = match recorded_digests().get(path.as_str()).filter(|_| !custom) {
            Some(recorded) => recorded.clone(),
            None => digest(&v3_document(registry, path)?),
        };
        Some((path.clone(), digest))
    };
    let by_path: HashMap<String, String> = paths.iter().filter_map(digest_of).collect();
    *DIGESTS.lock() = Some(Digests { registry: Arc::downgrade(registry), by_path: by_path.clone() });
    by_path
}

/// Returns the digests of the recorded documents, which never change.
fn recorded_digests() -> &'static HashMap<&'static str, String> {
    static RECORDED: LazyLock<HashMap<&'static str, String>> = LazyLock::new(|| {
        let digest_of = |path| Some((path, digest(&native::openapi::v3(path)?)));
        native::openapi::v3_paths().filter_map(digest_of).collect()
    });
    &RECORDED
}

/// Splits `apis/<group>/<version>` or `api/<version>`.
fn group_version(path: &str) -> Option<(&str, &str)> {
    match path.split('/').collect::<Vec<_>>().as_slice() {
        ["api", version] => Some(("", version)),
        ["apis", group, version] => Some((group, version)),
        _ => None,
    }
}

fn customs<'a>(registry: &'a Registry, group: &str, version: &str) -> Vec<(&'a Arc<Custom>, &'a Version)> {
    let mut found: Vec<_> = registry
        .definitions()
        .values()
        .filter(|custom| custom.group == group)
        .flat_map(|custom| custom.versions.iter().map(move |version| (custom, version)))
        .filter(|(_, own)| own.served && own.name == version)
        .collect();
    found.sort_by(|a, b| a.0.name.cmp(&b.0.name));
    found
}

fn v3_document(registry: &Registry, path: &str) -> Option<Vec<u8>> {
    let recorded = native::openapi::v3(path);
    let found =
        group_version(path).map(|(group, version)| customs(registry, group, version)).unwrap_or_default();
    if found.is_empty() {
        return recorded.map(|document| document.to_vec());
    }
    let empty = br#"{"openapi":"3.0.0","info":{"title":"Kubernetes CRD Swagger","version":"v0.1.0"}}"#;
    let mut document = Pieces::read(recorded.as_deref().unwrap_or(empty)).ok()?;
    let mut components = document.take("components");
    let (mut schemas, mut paths) = (components.take("schemas"), document.take("paths"));
    let source = native::openapi::v3("apis/apps/v1")?;
    let schemas_of_source = Pieces::read(&source).ok()?.take("components").take("schemas");
    for (custom, version) in found {
        let name = definition_name(custom, version);
        schemas.set(&name, &openapi_custom::object_schema(custom, version, true));
        schemas.set(format!("{name}List"), &openapi_custom::list_schema(custom, version, &name, true));
        schemas.add_missing(&schemas_of_source, |name| openapi_custom::is_common_schema(version, name));
        for (path, item) in openapi_custom::v3_paths(custom, version, &name) {
            paths.set(path, &item);
        }
    }
    components.put("schemas", &schemas);
    document.put("components", &components);
    document.put("paths", &paths);
    Some(document.print().into_bytes())
}

fn v2_document(registry: &Registry) -> Vec<u8> {
    let recorded = native::openapi::v2();
    let others = registry.remotes().iter().filter_map(|remote| remote.openapi.as_deref());
    let others: Vec<Pieces<'_>> = others.filter_map(|text| Pieces::read(text.as_bytes()).ok()).collect();
    if registry.definitions().is_empty() && others.is_empty() {
        return recorded.to_vec();
    }
    let Ok(mut document) = Pieces::read(&recorded) else { return recorded.to_vec() };
    let (mut schemas, mut paths) = (document.take("definitions"), document.take("paths"));
    for custom in registry.definitions().values() {
        for version in custom.versions.iter().filter(|version| version.served) {
            let name = definition_name(custom, version);
            schemas.set(&name, &openapi_custom::object_schema(custom, version, false));
            schemas.set(format!("{name}List"), &openapi_custom::list_schema(custom, version, &name, false));
            for (path, item) in openapi_custom::v2_paths(custom, version, &name) {
                paths.set(path, &item);
            }
        }
    }
    // If another server and we define the same type, ours counts: types are shared only if they are Kubernetes' own, and
    // upstream's copies for each server help no client.
    for mut other in others {
        schemas.add_missing(&other.take("definitions"), |_| true);
        paths.add_missing(&other.take("paths"), |_| true);
    }
    document.put("definitions", &schemas);
    document.put("paths", &paths);
    document.print().into_bytes()
}

/// `com.example.v1.Foo` for group `example.com`.
fn definition_name(custom: &Custom, version: &Version) -> String {
    let reversed: Vec<&str> = custom.group.rsplit('.').collect();
    format!("{}.{}.{}", reversed.join("."), version.name, custom.names.kind)
}
