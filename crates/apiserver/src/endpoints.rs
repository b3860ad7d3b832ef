//! Everything that is not a resource: discovery, versions, health, metrics, schemas.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use apimachinery::status::Status;
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{Method, Response, header};
use serde_json::{Value, json};

use crate::handlers::context::Context;
use crate::http::body::{self, Body};
use crate::http::negotiate::{Accepted, Media, Offer};
use crate::http::respond;
use crate::openapi;
use crate::registry::discovery::Aggregated;
use crate::server::{Check, Server};

/// The Kubernetes version that this server implements.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

/// A path that is not a resource. Paths without an entry in [`ROUTES`] are not served.
pub struct Route {
    /// With `/*` at the end: everything below.
    pub path: &'static str,
    /// The users that may read it, according to the built-in roles.
    pub readers: Readers,
    answer: Answer,
}

enum Answer {
    AtOnce(fn(&Arc<Server>, &Context, &[&str]) -> Response<Body>),
    /// An OpenAPI document.
    OpenApi,
}

/// The users that may read a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// Also users without a credential.
    Anyone,
    /// Every authenticated user, whatever their rights are.
    Authenticated,
    /// Only users with the right to read it.
    Granted,
}

/// All paths besides resources.
pub static ROUTES: &[Route] = &[
    Route::new("/", Readers::Granted, |server, _, _| root(server)),
    Route::new("/version", Readers::Anyone, |_, _, _| version()),
    Route::new("/healthz", Readers::Anyone, health),
    Route::new("/healthz/*", Readers::Granted, health),
    Route::new("/livez", Readers::Anyone, health),
    Route::new("/livez/*", Readers::Granted, health),
    Route::new("/readyz", Readers::Anyone, health),
    Route::new("/readyz/*", Readers::Granted, health),
    Route::new("/metrics", Readers::Granted, |server, _, _| {
        let kinds = server.registry.load().stored_kinds();
        let text = server.metrics.render(&server.store, &kinds, &server.extensions.metrics());
        respond::bytes_of(200, text, "application/openmetrics-text; version=1.0.0; charset=utf-8")
    }),
    Route::new("/metrics/slis", Readers::Granted, |server, _, _| slis(server)),
    Route::new("/statusz", Readers::Granted, |server, _, _| statusz(server)),
    Route::new("/api", Readers::Authenticated, discovery),
    Route::new("/api/*", Readers::Authenticated, discovery),
    Route::new("/apis", Readers::Authenticated, discovery),
    Route::new("/apis/*", Readers::Authenticated, discovery),
    Route::open_api("/openapi/v2", Readers::Authenticated),
    Route::open_api("/openapi/v3", Readers::Authenticated),
    Route::open_api("/openapi/v3/*", Readers::Authenticated),
    Route::open_api("/swagger-2.0.0.pb-v1", Readers::Granted),
    Route::new("/.well-known/openid-configuration", Readers::Granted, |server, _, _| {
        crate::issuer::configuration(server)
    }),
    Route::new("/openid/v1/jwks", Readers::Granted, |server, _, _| crate::issuer::keys(server)),
];

impl Route {
    const fn new(
        path: &'static str,
        readers: Readers,
        answer: fn(&Arc<Server>, &Context, &[&str]) -> Response<Body>,
    ) -> Self {
        Self { path, readers, answer: Answer::AtOnce(answer) }
    }

    const fn open_api(path: &'static str, readers: Readers) -> Self {
        Self { path, readers, answer: Answer::OpenApi }
    }

    fn matches(&self, path: &str) -> bool {
        match self.path.strip_suffix("/*") {
            Some(base) => path.strip_prefix(base).is_some_and(|rest| rest.starts_with('/')),
            None => path == self.path,
        }
    }
}

impl std::fmt::Debug for Route {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Route").field("path", &self.path).field("readers", &self.readers).finish()
    }
}

/// Answers a request for a path that is not a resource.
pub(crate) async fn answer(server: &Arc<Server>, context: &Context) -> Response<Body> {
    if context.method != Method::GET && context.method != Method::HEAD {
        return respond::error(&Status::method_not_allowed());
    }
    let path = format!("/{}", context.info.path.trim_matches('/'));
    let segments: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match ROUTES.iter().find(|route| route.matches(&path)).map(|route| &route.answer) {
        Some(Answer::AtOnce(answer)) => answer(server, context, &segments),
        Some(Answer::OpenApi) => openapi::answer(server, context).await,
        None => respond::text(404, "404 page not found\n"),
    }
}

fn root(server: &Server) -> Response<Body> {
    let registry = server.registry.load();
    let mut paths = vec!["/api".to_owned(), "/apis".to_owned()];
    for group in registry.groups() {
        if group.name.is_empty() {
            paths.push("/api/v1".to_owned());
            continue;
        }
        paths.push(format!("/apis/{}", group.name));
        paths.extend(group.versions.iter().map(|version| format!("/apis/{}/{version}", group.name)));
    }
    for path in [
        "/healthz",
        "/livez",
        "/metrics",
        "/metrics/slis",
        "/openapi/v2",
        "/openapi/v3",
        "/readyz",
        "/version",
    ] {
        paths.push(path.to_owned());
    }
    paths.push("/.well-known/openid-configuration".to_owned());
    paths.push("/openid/v1/jwks".to_owned());
    paths.sort();
    respond::bytes_of(200, format!("{:#}", json!({"paths": paths})), "application/json")
}

fn version() -> Response<Body> {
    let version = json!({
        "major": "1",
        "minor": "36",
        "emulationMajor": "1",
        "emulationMinor": "36",
        "minCompatibilityMajor": "1",
        "minCompatibilityMinor": "35",
        "gitVersion": format!("{KUBERNETES_VERSION}+karmada-rs"),
        "gitCommit": option_env!("KARMADA_RS_COMMIT").unwrap_or("unknown"),
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "rustc",
        "platform": format!("{}/{}", std::env::consts::OS, go_architecture()),
    });
    respond::bytes_of(200, format!("{version:#}"), "application/json")
}

/// Writes a short page for people: what runs here, and since when.
fn statusz(server: &Server) -> Response<Body> {
    let seconds = server.identity.started.duration_until(jiff::Timestamp::now()).as_secs().max(0);
    let up = format!("{} hr {:02} min {:02} sec", seconds / 3600, seconds / 60 % 60, seconds % 60);
    let text = format!(
        "karmada apiserver statusz\nFor people, not for programs: the form of this page may change.\n\n\
         Started: {}\nUp: {up}\nBinary version: {KUBERNETES_VERSION}+karmada-rs\nEmulation version: 1.36\n\n\
         Paths: /healthz /livez /readyz /metrics /metrics/slis /version\n",
        server.identity.started.strftime("%Y-%m-%dT%H:%M:%SZ"),
    );
    respond::text(200, text)
}

fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Returns all checks; those of `/livez` have [`Check::live`].
fn checks(server: &Server, endpoint: &str) -> Vec<Check> {
    let stopping = server.stop.is_cancelled().then(|| "process is shutting down".to_owned());
    let waiting = |done: &std::sync::atomic::AtomicBool, what: &str| {
        (!done.load(Ordering::Acquire)).then(|| format!("not finished: {what}"))
    };
    let store = server.store.stats();
    let store_failure = store.read_only.map(|why| why.to_string());
    let on_etcd = server.store.is_on_etcd();
    let mut checks = vec![
        Check { name: "ping".into(), live: true, failure: None },
        Check { name: "log".into(), live: true, failure: None },
        // A restart does not help against a full disk or an unreachable etcd: reads continue, and so do writes once the fault is
        // gone. Only when the store's thread has ended does a restart help.
        Check {
            name: "etcd".into(),
            live: true,
            failure: store_failure.clone().filter(|_| store.dead || endpoint == "readyz"),
        },
        Check { name: "informer-sync".into(), live: false, failure: None },
        Check {
            name: "poststarthook/crd-informer-synced".into(),
            live: true,
            failure: waiting(&server.ready.definitions, "custom resource definitions are being installed"),
        },
        Check {
            name: "poststarthook/rbac/bootstrap-roles".into(),
            live: true,
            failure: waiting(&server.ready.bootstrapped, "bootstrap objects are being written"),
        },
        Check {
            name: "poststarthook/start-system-namespaces-controller".into(),
            live: true,
            failure: waiting(&server.ready.bootstrapped, "bootstrap objects are being written"),
        },
        Check { name: "shutdown".into(), live: false, failure: stopping },
    ];
    if on_etcd {
        checks.insert(3, Check { name: "etcd-readiness".into(), live: false, failure: store_failure });
    }
    // This does not call for a restart either: the object that caused the panic is stored.
    let controllers = server.ready.controllers.checks();
    checks.extend(controllers.into_iter().map(|(name, failure)| Check {
        name: format!("controller/{name}").into(),
        live: false,
        failure,
    }));
    checks.extend(server.extensions.checks());
    checks
}

/// Returns a check for each endpoint of etcd, if there are several. They are only informative: the other endpoints answer.
fn endpoint_checks(server: &Server, endpoint: &str) -> Vec<Check> {
    let endpoints = server.store.etcd_endpoints();
    let shown = endpoint == "readyz" && endpoints.len() > 1;
    let endpoints = endpoints.into_iter().filter(|_| shown).enumerate();
    let check = |(number, endpoint): (usize, store::EtcdEndpoint)| Check {
        name: format!("etcd-endpoint-{number}").into(),
        live: false,
        failure: endpoint.failure.map(|why| format!("{}: {why}", endpoint.url)),
    };
    endpoints.map(check).collect()
}

/// Returns the results of all health checks as metrics.
fn slis(server: &Server) -> Response<Body> {
    let mut text = String::from(
        "# HELP kubernetes_healthcheck Whether a check of the server's health passes.\n# TYPE kubernetes_healthcheck gauge\n",
    );
    for endpoint in ["healthz", "livez", "readyz"] {
        let shown = checks(server, endpoint).into_iter().filter(|check| check.live || endpoint == "readyz");
        for check in shown.chain(endpoint_checks(server, endpoint)) {
            let value = u8::from(check.failure.is_none());
            text.push_str(&format!(
                "kubernetes_healthcheck{{name=\"{}\",type=\"{endpoint}\"}} {value}\n",
                check.name
            ));
        }
    }
    respond::bytes_of(200, text, "text/plain; version=0.0.4; charset=utf-8")
}

fn health(server: &Arc<Server>, context: &Context, segments: &[&str]) -> Response<Body> {
    let (endpoint, single) = (segments.first().copied().unwrap_or_default(), segments.get(1));
    let checks: Vec<Check> =
        checks(server, endpoint).into_iter().filter(|check| endpoint == "readyz" || check.live).collect();
    let single_endpoints = endpoint_checks(server, endpoint);
    let wanted =
        context.info.path.trim_start_matches('/').trim_start_matches(endpoint).trim_matches('/').to_owned();
    if single.is_some() {
        return match checks.iter().chain(&single_endpoints).find(|check| check.name == wanted) {
            Some(Check { failure: None, .. }) => respond::text(200, "ok"),
            Some(Check { failure: Some(why), .. }) => {
                respond::text(500, format!("internal server error: {why}\n"))
            }
            None => respond::text(404, "404 page not found\n"),
        };
    }
    let excluded: Vec<&str> = context.query.all("exclude").collect();
    let mut lines = String::new();
    let mut failed = Vec::new();
    for check in &checks {
        if excluded.contains(&&*check.name) {
            lines.push_str(&format!("[+]{} excluded: ok\n", check.name));
            continue;
        }
        match &check.failure {
            None => lines.push_str(&format!("[+]{} ok\n", check.name)),
            Some(why) => {
                failed.push(&check.name);
                tracing::debug!(check = %check.name, %why, "health check fails");
                lines.push_str(&format!("[-]{} failed: reason withheld\n", check.name));
            }
        }
    }
    for check in &single_endpoints {
        let (mark, outcome) = match check.failure {
            None => ('+', "ok"),
            Some(_) => ('-', "failed: others are asked"),
        };
        lines.push_str(&format!("[{mark}]{} {outcome}\n", check.name));
    }
    if !failed.is_empty() {
        return respond::text(500, format!("{lines}{endpoint} check failed\n"));
    }
    if context.query.get("verbose").is_some() {
        return respond::text(200, format!("{lines}{endpoint} check passed\n"));
    }
    respond::text(200, "ok")
}

/// Returns whether a client asks for all groups in one document.
fn wants_aggregated(context: &Context) -> bool {
    let accept = context.header(header::ACCEPT).unwrap_or("");
    for clause in accept.split(',') {
        let clause: String = clause.chars().filter(|c| !c.is_whitespace()).collect();
        let mut parts = clause.split(';');
        if parts.next() != Some("application/json") {
            continue;
        }
        let parts: Vec<&str> = parts.collect();
        if ["g=apidiscovery.k8s.io", "v=v2", "as=APIGroupDiscoveryList"]
            .iter()
            .all(|part| parts.contains(part))
        {
            return true;
        }
        if !parts.iter().any(|part| part.starts_with("as=")) {
            return false;
        }
    }
    false
}

fn discovery(server: &Arc<Server>, context: &Context, segments: &[&str]) -> Response<Body> {
    let registry = server.registry.load_full();
    let documents = registry.documents();
    // The old form is JSON or, on request, YAML. Clients that want protobuf get JSON.
    let offer = Offer {
        protobuf: true,
        yaml: true,
        table: false,
        metadata: false,
        metadata_list: false,
        native: true,
    };
    let accepted = context.accept(offer);
    let legacy = |document: Bytes| match &accepted {
        Err(status) => respond::error(status),
        Ok(Accepted { media: Media::Yaml, .. }) => match serde_json::from_slice::<Value>(&document) {
            Ok(tree) => respond::value(200, &tree, Accepted { media: Media::Yaml, ..Accepted::JSON }),
            Err(error) => respond::error(&Status::internal(error)),
        },
        Ok(_) => respond::bytes_of(200, document, "application/json"),
    };
    match segments {
        ["api"] if wants_aggregated(context) => aggregated(context, &documents.core),
        ["api"] => {
            let host = context.header(header::HOST).unwrap_or("");
            let document = json!({
                "kind": "APIVersions",
                "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": host}],
            });
            legacy(format!("{document}\n").into())
        }
        ["apis"] if wants_aggregated(context) => aggregated(context, &documents.named),
        ["apis"] => legacy(documents.groups.clone()),
        ["api", "v1"] => match documents.resources.get(&(String::new(), "v1".to_owned())) {
            Some(document) => legacy(document.clone()),
            None => respond::text(404, "404 page not found\n"),
        },
        ["apis", group] => match documents.group.get(*group) {
            Some(document) => legacy(document.clone()),
            None => respond::text(404, "404 page not found\n"),
        },
        ["apis", group, version] => {
            match documents.resources.get(&((*group).to_owned(), (*version).to_owned())) {
                Some(document) => legacy(document.clone()),
                None if registry.group(group).is_some_and(|group| group.native) => {
                    respond::error(&Status::no_such_route())
                }
                None => respond::text(404, "404 page not found\n"),
            }
        }
        ["api", ..] => respond::error(&Status::no_such_route()),
        _ => respond::text(404, "404 page not found\n"),
    }
}

fn aggregated(context: &Context, document: &Aggregated) -> Response<Body> {
    let content_type = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let unchanged = context.header(IF_NONE_MATCH).is_some_and(|tag| tag == document.etag);
    let mut response = if unchanged {
        let mut response = Response::new(body::empty());
        *response.status_mut() = http::StatusCode::NOT_MODIFIED;
        response
    } else {
        respond::bytes_of(200, document.bytes.clone(), content_type)
    };
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    headers.insert(VARY, HeaderValue::from_static("Accept"));
    if let Ok(tag) = HeaderValue::from_str(&document.etag) {
        headers.insert(ETAG, tag);
    }
    response
}
