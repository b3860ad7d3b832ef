//! Somebody without credentials.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::stage::{Stage, Verdict};
use crate::wire::request;

/// Asks for made-up groups and resources by the thousand; none may become a label of a metric.
pub(crate) async fn metric_labels(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    for batch in 0..20 {
        let mut stream = door.tls("http/1.1").await.map_err(|error| error.to_string())?;
        let mut sent = Vec::new();
        for number in 0..20 {
            let name = format!("madeup{batch}x{number}{}", "y".repeat(6_000));
            let path = format!("/apis/{name}/v1/namespaces/x/{name}");
            sent.extend(request("", "GET", &path, &[("Connection", "keep-alive")], b""));
        }
        sent.extend(request("", "GET", "/version", &[], b""));
        let _ = stream.write_all(&sent).await;
        let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut Vec::new())).await;
    }
    let metrics = stage.plane.calm.get("root", "metrics").await;
    let text = metrics.text();
    if metrics.code != 200 || text.contains("madeup") {
        return Err(format!("the metrics have {} KB and made-up names", text.len() / 1024));
    }
    Ok(format!("metrics of {} KB without a made-up name", text.len() / 1024))
}

/// Tries these paths; none may be answered with a success.
async fn none_succeeds(stage: &Stage, who: &str, paths: &[&str]) -> Verdict {
    for path in paths {
        let answer = stage.plane.door.raw(request(who, "GET", path, &[], b"")).await;
        if (200..300).contains(&answer.code) && !answer.text().starts_with("ok") {
            return Err(format!("{path}: {}", answer.brief()));
        }
        if answer.text().contains(crate::plane::SECRET) {
            return Err(format!("{path} shows a secret"));
        }
    }
    Ok(format!("{} paths refused", paths.len()))
}

pub(crate) async fn traversal(stage: &Stage) -> Verdict {
    none_succeeds(
        stage,
        "",
        &[
            "/healthz/../api/v1/secrets",
            "/healthz/%2e%2e/api/v1/secrets",
            "/healthz%2f..%2fapi%2fv1%2fsecrets",
            "/version/../../api/v1/namespaces/other/secrets/treasure",
            "//api//v1//secrets",
            "/./api/v1/secrets",
            "/api/v1/namespaces/default/../other/secrets/treasure",
            "/readyz/..;/api/v1/secrets",
            "/api/v1/secrets#/healthz",
            "/api/v1/secrets;/healthz",
            "/openid/v1/jwks/../../../api/v1/secrets",
        ],
    )
    .await
}

pub(crate) async fn debugging(stage: &Stage) -> Verdict {
    none_succeeds(
        stage,
        "",
        &[
            "/debug/pprof/heap",
            "/debug/pprof/profile",
            "/debug/flags/v",
            "/metrics",
            "/configz",
            "/logs/",
            "/openapi/v2",
            "/api/v1/nodes/x/proxy/",
            "/apis/cluster.karmada.io/v1alpha1/clusters/m1/proxy/api",
        ],
    )
    .await
}

pub(crate) async fn identity_headers(stage: &Stage) -> Verdict {
    let path = "api/v1/namespaces/other/secrets/treasure";
    for headers in [
        &[("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")][..],
        &[("Impersonate-User", "root"), ("Impersonate-Group", "system:masters")],
        &[("X-Forwarded-User", "root")],
        &[("Authorization", "Basic cm9vdDpyb290")],
        &[("Authorization", "Bearer ")],
    ] {
        let answer = stage.plane.door.get_with("", path, headers).await;
        answer.one_of(&[401, 403, 400]).map_err(|seen| format!("{headers:?}: {seen}"))?;
    }
    Ok("401 or 403 each".to_owned())
}

/// Of two credentials a proxy may have looked at the other one.
pub(crate) async fn two_credentials(stage: &Stage) -> Verdict {
    let path = "api/v1/namespaces/other/secrets/treasure";
    stage.plane.door.get_with("wrong", path, &[("Authorization", "Bearer root")]).await.one_of(&[400, 401])
}

pub(crate) async fn smuggling(stage: &Stage) -> Verdict {
    let inner = "GET /api/v1/namespaces/other/secrets/treasure HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer root\r\n\r\n";
    for head in [
        "Content-Length: 5\r\nContent-Length: 50\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        "Transfer-Encoding: xchunked\r\n",
        "Content-Length: +5\r\n",
        "Content-Length: 5, 6\r\n",
    ] {
        let sent = format!("POST /version HTTP/1.1\r\nHost: x\r\n{head}\r\n0\r\n\r\n{inner}");
        let answer = stage.plane.door.raw_within(sent.into_bytes(), Duration::from_secs(3)).await;
        if answer.text().contains(crate::plane::SECRET) {
            return Err(format!("{head:?}: the second request was answered"));
        }
    }
    Ok("no second request answered".to_owned())
}

pub(crate) async fn oversized_heads(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let long = "x".repeat(1 << 20);
    let mut seen = Vec::new();
    seen.push(door.get_with("", "version", &[("X-Long", &long)]).await.refused()?);
    seen.push(door.get("", &format!("api/{long}")).await.refused()?);
    let many: Vec<(String, String)> = (0..20_000).map(|n| (format!("X-{n}"), n.to_string())).collect();
    let many: Vec<(&str, &str)> = many.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    seen.push(door.get_with("", "version", &many).await.refused()?);
    Ok(seen.join("; "))
}

/// Bytes that are neither HTTP nor TLS.
pub(crate) async fn garbage(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    for bytes in [
        &b"\x00\x01\x02\x03\xff\xfe\r\n\r\n"[..],
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /%00%ff%fe HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /api/v1/namespaces/%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /a\x00b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nBad Header: y\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n folded\r\n\r\n",
        b"CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n",
        b"GET http://other.example.com/api/v1/secrets HTTP/1.1\r\nHost: other\r\nConnection: close\r\n\r\n",
    ] {
        let answer = door.raw_within(bytes.to_vec(), Duration::from_secs(5)).await;
        if (200..300).contains(&answer.code) && answer.code != 0 {
            return Err(format!("{:?}: {}", String::from_utf8_lossy(bytes), answer.brief()));
        }
    }
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0x16, 3, 1, 0xff, 0xff], &[0x80; 2000]] {
        let mut stream = door.tcp().await.map_err(|error| error.to_string())?;
        let _ = stream.write_all(bytes).await;
    }
    Ok("nothing is answered with a success".to_owned())
}

/// An upgrade to a container, and to anything else.
pub(crate) async fn upgrades(stage: &Stage) -> Verdict {
    let headers = [
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
        ("Sec-WebSocket-Protocol", "v4.channel.k8s.io"),
    ];
    for path in ["api/v1/namespaces/other/pods/x/exec?command=sh", "api/v1/nodes/x/proxy/run", "version"] {
        let sent = request("", "GET", path, &headers, b"");
        let answer = stage.plane.door.raw_within(sent, Duration::from_secs(3)).await;
        if answer.code == 101 {
            return Err(format!("{path} is upgraded"));
        }
    }
    Ok("no upgrade".to_owned())
}

/// Files of the server, by a path of the request.
pub(crate) async fn files(stage: &Stage) -> Verdict {
    none_succeeds(
        stage,
        "",
        &[
            "/../../../../etc/passwd",
            "/static/..%2f..%2fetc/passwd",
            "/swagger-ui/../../pki/ca.key",
            "/ui/../pki/ca.key",
            "/karmada.kubeconfig",
            "/pki/ca.key",
        ],
    )
    .await
}
