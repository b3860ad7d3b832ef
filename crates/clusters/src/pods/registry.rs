//! A read-only image registry for real pods, at the hub's address. It knows a few names, whatever the tag, and refuses all others.
//!
//! An image of a program holds the program and the libraries that it is linked with, as `ldd` finds them: enough for one that is
//! compiled for this machine.

use std::{convert::Infallible, fs, net::TcpListener, path::Path, process::Command, sync::Arc};

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use tokio::task::JoinHandle;

use super::{
    HUB_ADDRESS, REGISTRY_PORT,
    house::{Room, in_network},
    image::{File, Images, MANIFEST},
};
use crate::{
    error::Error,
    options::Image,
    toolchain::{POD_PROGRAM, Packages, Toolchain},
};

/// A listening registry. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Registry {
    task: JoinHandle<()>,
}

impl Registry {
    pub(crate) async fn start(
        toolchain: &Toolchain,
        packages: &Packages,
        more: &[Image],
        hub: Room,
    ) -> Result<Self, Error> {
        let (busybox, program) = (packages.busybox(), toolchain.path(&POD_PROGRAM.program("pod-program")));
        let tools = Command::new(&busybox).arg("--list").output().map_err(Error::io("run", &busybox))?;
        let tools = String::from_utf8_lossy(&tools.stdout).into_owned();
        let tools: Vec<&str> = tools.split_whitespace().collect();
        let busybox = fs::read(&busybox).map_err(Error::io("read", &busybox))?;
        let program = fs::read(&program).map_err(Error::io("read", &program))?;
        let mut images = Images::new(&busybox, &tools, &program);
        for image in more {
            images.add_program(&image.name, &with_libraries(&image.program)?);
        }
        let images = Arc::new(images);

        let listener = in_network(hub, || TcpListener::bind((HUB_ADDRESS, REGISTRY_PORT)))
            .await
            .and_then(|listener| {
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener)
            })
            .map_err(Error::io("listen at", format!("{HUB_ADDRESS}:{REGISTRY_PORT}")))?;
        Ok(Self { task: tokio::spawn(serve(listener, images)) })
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads a program and the libraries that it is linked with.
fn with_libraries(program: &Path) -> Result<Vec<File>, Error> {
    let read = |path: &Path| fs::read(path).map_err(Error::io("read", path));
    let name = program.file_name().unwrap_or_default().to_string_lossy();
    let mut files = vec![File { path: format!("/usr/bin/{name}"), content: read(program)? }];
    // It fails where there is nothing to tell: a program that needs no libraries.
    let told = Command::new("ldd").arg(program).output().map_err(Error::io("run ldd on", program))?;
    for path in libraries(&String::from_utf8_lossy(&told.stdout)) {
        files.push(File { path: path.to_string(), content: read(Path::new(path))? });
    }
    Ok(files)
}

/// Returns the paths that `ldd` names: those of libraries behind an arrow, that of the loader alone.
fn libraries(told: &str) -> impl Iterator<Item = &str> {
    told.lines().filter_map(|line| {
        let path = line.split_once("=>").map_or(line, |(_, path)| path).split_whitespace().next()?;
        path.starts_with('/').then_some(path)
    })
}

async fn serve(listener: tokio::net::TcpListener, images: Arc<Images>) {
    while let Ok((stream, _)) = listener.accept().await {
        let images = images.clone();
        tokio::spawn(async move {
            let service = service_fn(move |request: Request<Incoming>| {
                let answer = answer(&images, request.method(), request.uri().path(), request.uri().query());
                async move { Ok::<_, Infallible>(answer) }
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

fn answer(images: &Images, method: &Method, path: &str, query: Option<&str>) -> Response<Full<Bytes>> {
    if method != Method::GET && method != Method::HEAD {
        return refuse(StatusCode::METHOD_NOT_ALLOWED, "UNSUPPORTED", "this registry is read-only");
    }
    let Some(path) = path.strip_prefix("/v2/") else {
        return refuse(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "ask below /v2/");
    };
    if path.is_empty() {
        return respond("application/json", None, Bytes::from_static(b"{}"));
    }
    let parts: Vec<&str> = path.rsplitn(3, '/').collect();
    let [reference, kind, repository] = parts[..] else {
        return refuse(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "no such place");
    };
    // containerd says which registry it would have asked.
    let host = query.and_then(|query| query.strip_prefix("ns=")).unwrap_or("docker.io");
    let Some(manifest) = images.names.get(&format!("{host}/{repository}")) else {
        return refuse(
            StatusCode::NOT_FOUND,
            "NAME_UNKNOWN",
            "this image is not among those of the test bed",
        );
    };
    let digest = if reference.starts_with("sha256:") { reference } else { manifest };
    match (kind, images.blobs.get(digest)) {
        ("manifests", Some(blob)) => respond(MANIFEST, Some(digest), blob.clone()),
        ("blobs", Some(blob)) => respond("application/octet-stream", Some(digest), blob.clone()),
        _ => refuse(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "no such blob or manifest"),
    }
}

fn respond(kind: &str, digest: Option<&str>, body: Bytes) -> Response<Full<Bytes>> {
    // hyper itself leaves the body out of an answer to HEAD.
    let mut response =
        Response::builder().header(header::CONTENT_TYPE, kind).header(header::CONTENT_LENGTH, body.len());
    if let Some(digest) = digest {
        response = response.header("Docker-Content-Digest", digest);
    }
    response.body(Full::new(body)).expect("constant headers are valid")
}

fn refuse(status: StatusCode, code: &str, message: &str) -> Response<Full<Bytes>> {
    let body = serde_json::json!({"errors": [{"code": code, "message": message}]}).to_string();
    let response = Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Full::new(Bytes::from(body))).expect("constant headers are valid")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(path: &str, query: Option<&str>) -> StatusCode {
        answer(&Images::new(b"busybox", &["sh"], b"program"), &Method::GET, path, query).status()
    }

    #[test]
    fn the_images_of_the_suite_are_served_with_any_tag() {
        assert_eq!(ask("/v2/library/nginx/manifests/1.19.0", Some("ns=docker.io")), StatusCode::OK);
        assert_eq!(ask("/v2/library/busybox/manifests/latest", Some("ns=docker.io")), StatusCode::OK);
        assert_eq!(ask("/v2/pause/manifests/3.10", Some("ns=registry.k8s.io")), StatusCode::OK);
    }

    #[test]
    fn an_image_that_is_not_ours_is_unknown() {
        assert_eq!(ask("/v2/fake/nginx/manifests/1.19.0", Some("ns=docker.io")), StatusCode::NOT_FOUND);
        assert_eq!(ask("/v2/nginx/manifests/latest", Some("ns=quay.io")), StatusCode::NOT_FOUND);
    }

    #[test]
    fn the_image_of_a_program_is_known_in_its_own_registry_only() {
        let mut images = Images::new(b"busybox", &["sh"], b"program");
        let file = File { path: "/bin/karmada".to_string(), content: Vec::new() };
        images.add_program("ghcr.io/karmada-rs/karmada", &[file]);
        let ask = |query| {
            answer(&images, &Method::GET, "/v2/karmada-rs/karmada/manifests/v1", Some(query)).status()
        };
        assert_eq!(ask("ns=ghcr.io"), StatusCode::OK);
        assert_eq!(ask("ns=docker.io"), StatusCode::NOT_FOUND);
    }

    #[test]
    fn libraries_are_those_that_ldd_found_and_the_loader() {
        let told = "\tlinux-vdso.so.1 (0x7ff)\n\tlibc.so.6 => /lib/libc.so.6 (0x7f0)\n\tlibx.so => not found\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x7f1)\n";
        assert_eq!(libraries(told).collect::<Vec<_>>(), ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert_eq!(libraries("\tnot a dynamic executable\n").count(), 0);
    }

    #[test]
    fn nothing_can_be_written() {
        let images = Images::new(b"busybox", &["sh"], b"program");
        let refused = answer(&images, &Method::PUT, "/v2/library/nginx/manifests/latest", None);
        assert_eq!(refused.status(), StatusCode::METHOD_NOT_ALLOWED);
    }
}
