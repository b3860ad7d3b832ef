//! Somebody who has an account and no rights: what every authenticated user may send.

use std::time::Duration;

use base64::Engine as _;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::hostile::gzip_bomb;
use crate::plane::SECRET;
use crate::stage::{Stage, Verdict};
use crate::wire::{Sent, request};

const REVIEW: &str = "apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const YAML: &str = "application/yaml";
const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fn review() -> Value {
    json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"verb": "get", "resource": "pods"}}})
}

/// Ten layers of ten aliases each.
pub(crate) async fn billion_laughs(stage: &Stage) -> Verdict {
    let mut text =
        "apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\na0: &a0 [lol]\n".to_owned();
    for layer in 1..12 {
        let inner = vec![format!("*a{}", layer - 1); 10].join(",");
        text += &format!("a{layer}: &a{layer} [{inner}]\n");
    }
    stage.plane.door.send("nobody", "POST", REVIEW, Sent::of(YAML, text)).await.refused()
}

/// One long text and thousands of aliases of it: few nodes, many bytes.
pub(crate) async fn heavy_aliases(stage: &Stage) -> Verdict {
    let aliases = vec!["*a"; 4_000].join(",");
    let text = format!(
        "apiVersion: authorization.k8s.io/v1\nkind: SelfSubjectAccessReview\nmetadata:\n  annotations:\n    a: &a {}\n  x: [{aliases}]\n",
        "x".repeat(2 << 20)
    );
    stage.plane.door.send("nobody", "POST", REVIEW, Sent::of(YAML, text)).await.refused()
}

/// The same with scalars that are keys, and with merge keys.
pub(crate) async fn heavy_keys(stage: &Stage) -> Verdict {
    let mut text = format!("k: &k {}\nm: &m {{ *k : 1 }}\n", "y".repeat(1 << 20));
    for number in 0..3_000 {
        text += &format!("m{number}: {{ *k : *m }}\n");
    }
    stage.plane.door.send("nobody", "POST", REVIEW, Sent::of(YAML, text)).await.refused()
}

/// Nesting in all its forms.
pub(crate) async fn nesting(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let deep = |open: &str, close: &str, depth: usize| {
        format!("{{\"spec\":{}1{}}}", open.repeat(depth), close.repeat(depth))
    };
    for body in [deep("[", "]", 500_000), deep("{\"a\":", "}", 300_000), deep("[{\"a\":", "}]", 200_000)] {
        door.send("nobody", "POST", REVIEW, body).await.refused()?;
    }
    for text in [
        "[".repeat(500_000),
        "- ".repeat(500_000),
        "? ".repeat(300_000),
        "{a: ".repeat(300_000),
        "!!a ".repeat(100_000),
        "&a ".repeat(100_000),
    ] {
        door.send("nobody", "POST", REVIEW, Sent::of(YAML, text)).await.refused()?;
    }
    let spaces: String = (0..2_000).map(|n| format!("{}a:\n", " ".repeat(n))).collect();
    door.send("nobody", "POST", REVIEW, Sent::of(YAML, spaces)).await.refused()
}

pub(crate) async fn numbers(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    for number in [
        "1e999999999",
        "-1e-999999999",
        "99999999999999999999999999",
        "0.1e1000000000000000000",
        "-0",
        "1E400",
    ] {
        let body = format!(
            r#"{{"apiVersion":"authorization.k8s.io/v1","kind":"SelfSubjectAccessReview","spec":{number}}}"#
        );
        door.send("nobody", "POST", REVIEW, body).await.refused()?;
    }
    let long = format!(r#"{{"spec":{{"resourceAttributes":{}}}}}"#, "9".repeat(2 << 20));
    door.send("nobody", "POST", REVIEW, long).await.refused()
}

/// Protobuf that promises more than it has, nests without end, or is not protobuf.
pub(crate) async fn protobuf(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let wrap = |inner: &[u8]| [b"k8s\x00", inner].concat();
    let mut nested = vec![0x0a, 0];
    for _ in 0..100_000 {
        let length = nested.len();
        let mut next = vec![0x0a];
        let mut rest = length;
        while rest >= 128 {
            next.push((rest % 128) as u8 | 128);
            rest /= 128;
        }
        next.push(rest as u8);
        next.extend_from_slice(&nested[..nested.len().min(64)]);
        nested = next;
    }
    let groups = vec![0x0b; 1 << 20];
    for body in [
        wrap(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f]),
        wrap(&[0x12, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        wrap(&[0xff; 64]),
        wrap(&nested),
        wrap(&groups),
        b"k8s\x00".to_vec(),
        b"k8".to_vec(),
        vec![0x0a; 100],
    ] {
        door.send("nobody", "POST", REVIEW, Sent::of(PROTOBUF, body)).await.refused()?;
    }
    Ok("refused each".to_owned())
}

pub(crate) async fn gzip_body(stage: &Stage) -> Verdict {
    let bomb = gzip_bomb();
    let headers = [("Content-Type", "application/json"), ("Content-Encoding", "gzip")];
    stage.plane.door.raw(request("nobody", "POST", REVIEW, &headers, &bomb[..2_500_000])).await.refused()
}

/// 100 MB, announced and not.
pub(crate) async fn large_bodies(stage: &Stage) -> Verdict {
    let body = vec![b' '; 100 << 20];
    let answer = stage.plane.door.send("nobody", "POST", REVIEW, Sent::of("application/json", body)).await;
    let seen = answer.refused()?;
    let mut stream = stage.plane.door.tls("http/1.1").await.map_err(|error| error.to_string())?;
    let head = format!(
        "POST /{REVIEW} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer nobody\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
    );
    let _ = stream.write_all(head.as_bytes()).await;
    let chunk = format!("10000\r\n{}\r\n", " ".repeat(0x10000));
    let pushing = async {
        for sent in 0..2_000 {
            if stream.write_all(chunk.as_bytes()).await.is_err() {
                return sent;
            }
        }
        2_000
    };
    let sent = tokio::time::timeout(Duration::from_secs(5), pushing).await.unwrap_or(0);
    if sent == 2_000 { Err("125 MB of chunks are taken".to_owned()) } else { Ok(seen) }
}

pub(crate) async fn duplicate_fields(stage: &Stage) -> Verdict {
    let many: Vec<String> = (0..100_000).map(|n| format!("\"spec\":{n}")).collect();
    let body = format!("{{{}}}", many.join(","));
    let path = format!("{REVIEW}?fieldValidation=Strict");
    let answer = stage.plane.door.send("nobody", "POST", &path, body).await;
    let size = answer.body.len();
    let seen = answer.refused()?;
    if size > 1 << 20 { Err(format!("an answer of {size} bytes")) } else { Ok(seen) }
}

/// Tokens that nobody issued.
pub(crate) async fn forged_tokens(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let part = |value: Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({"iss": "https://kubernetes.default.svc.cluster.local", "sub": "system:serviceaccount:kube-system:default",
        "aud": ["https://kubernetes.default.svc.cluster.local"], "exp": 4_000_000_000u64, "nbf": 0, "iat": 0,
        "kubernetes.io": {"namespace": "kube-system", "serviceaccount": {"name": "default", "uid": "x"}}});
    let legacy = json!({"iss": "kubernetes/serviceaccount", "sub": "system:serviceaccount:kube-system:default",
        "kubernetes.io/serviceaccount/namespace": "kube-system", "kubernetes.io/serviceaccount/service-account.name": "default"});
    let mut tokens = Vec::new();
    for claims in [claims, legacy] {
        for algorithm in ["none", "None", "HS256", "RS256", "ES256"] {
            let header = part(json!({"alg": algorithm, "typ": "JWT", "kid": "../../etc/passwd"}));
            tokens.push(format!("{header}.{}.", part(claims.clone())));
            tokens.push(format!("{header}.{}.AAAA", part(claims.clone())));
        }
    }
    tokens.push("a.b.c".to_owned());
    tokens.push(format!("{}.{}.x", "A".repeat(50_000), "A".repeat(50_000)));
    tokens.push("abcdef.0123456789abcdef".to_owned());
    tokens.push("%00".to_owned());
    for token in &tokens {
        let answer = door.get(token, "api/v1/namespaces/kube-system/secrets").await;
        let short: String = token.chars().take(40).collect();
        answer.one_of(&[401, 400, 431]).map_err(|seen| format!("{short}: {seen}"))?;
    }
    Ok(format!("{} tokens not believed", tokens.len()))
}

pub(crate) async fn impersonates(stage: &Stage) -> Verdict {
    let path = "api/v1/namespaces/other/secrets/treasure";
    for headers in [
        &[("Impersonate-User", "root")][..],
        &[("Impersonate-User", "nobody"), ("Impersonate-Group", "system:masters")],
        &[("Impersonate-Group", "system:masters")],
        &[("Impersonate-Uid", "uid-root")],
        &[("Impersonate-Extra-scopes", "all")],
        &[("Impersonate-User", ""), ("Impersonate-Group", "system:masters")],
        &[("impersonate-user", "system:serviceaccount:kube-system:default")],
    ] {
        let answer = stage.plane.door.get_with("nobody", path, headers).await;
        if (200..300).contains(&answer.code) || answer.code == 0 {
            return Err(format!("{headers:?}: {}", answer.brief()));
        }
    }
    Ok("refused each".to_owned())
}

/// Refused by the hundred while others write.
pub(crate) async fn refused_by_the_hundred(stage: &Stage) -> Verdict {
    for _ in 0..5 {
        let mut stream = stage.plane.door.tls("http/1.1").await.map_err(|error| error.to_string())?;
        let mut sent = Vec::new();
        for number in 0..200 {
            let path = format!("/api/v1/namespaces/n{number}/secrets");
            sent.extend(request("nobody", "GET", &path, &[("Connection", "keep-alive")], b""));
        }
        sent.extend(request("nobody", "GET", "/version", &[], b""));
        let _ = stream.write_all(&sent).await;
        let _ = tokio::time::timeout(Duration::from_secs(20), stream.read_to_end(&mut Vec::new())).await;
    }
    Ok("1,000 refusals".to_owned())
}

/// What is refused says nothing about what exists.
pub(crate) async fn oracle(stage: &Stage) -> Verdict {
    let there = stage.plane.door.get("nobody", "api/v1/namespaces/other/secrets/treasure").await;
    let absent = stage.plane.door.get("nobody", "api/v1/namespaces/other/secrets/nothing").await;
    let same = there.text().replace("treasure", "nothing") == absent.text();
    match (there.code, absent.code, same) {
        (403, 403, true) => Ok("the same 403 whether it exists or not".to_owned()),
        _ => Err(format!("{} and {}", there.brief(), absent.brief())),
    }
}

/// Reviews that ask about others, or with selectors of a size.
pub(crate) async fn reviews(stage: &Stage) -> Verdict {
    let door = &stage.plane.door;
    let other = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview",
        "spec": {"user": "root", "resourceAttributes": {"verb": "get", "resource": "secrets"}}});
    door.post("nobody", "apis/authorization.k8s.io/v1/subjectaccessreviews", &other).await.one_of(&[403])?;
    let token =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": "root"}});
    door.post("nobody", "apis/authentication.k8s.io/v1/tokenreviews", &token).await.one_of(&[403])?;
    let mut large = review();
    let requirements: Vec<Value> = (0..20_000)
        .map(|n| json!({"key": format!("k{n}"), "operator": "In", "values": ["a", "b"]}))
        .collect();
    large["spec"]["resourceAttributes"]["labelSelector"] = json!({"requirements": requirements});
    let answer = door.post("nobody", REVIEW, &large).await;
    if answer.body.len() > 8 << 20 {
        return Err(format!("an answer of {} bytes", answer.body.len()));
    }
    answer.one_of(&[201, 400, 413, 422])
}

/// The narrow way into Secrets: names in paths that mean something else.
pub(crate) async fn path_confusion(stage: &Stage) -> Verdict {
    for path in [
        "/api/v1/namespaces/quiet%2f..%2fother/secrets/treasure",
        "/api/v1/namespaces/other/configmaps/..%2fsecrets%2ftreasure",
        "/api/v1/namespaces/other/configmaps%2f..%2fsecrets/treasure",
        "/api/v1/namespaces/other/secrets/treasure/status",
        "/api/v1/namespaces/other/secrets/treasure/../treasure",
        "/api/v1/namespaces//other/secrets/treasure",
        "/api/v1/watch/namespaces/other/secrets/treasure",
        "/api/v1/watch/namespaces/other/secrets",
        "/api/v1/proxy/namespaces/other/services/x",
        "/apis//v1/namespaces/other/secrets/treasure",
        "/API/v1/namespaces/other/secrets/treasure",
        "/api/v1/namespaces/other/Secrets/treasure",
        "/api/v1/namespaces/other/secrets/treasure%00",
    ] {
        let answer = stage
            .plane
            .door
            .raw_within(request("nobody", "GET", path, &[], b""), Duration::from_secs(5))
            .await;
        if answer.text().contains(SECRET) || (200..300).contains(&answer.code) {
            return Err(format!("{path}: {}", answer.brief()));
        }
    }
    Ok("no way in".to_owned())
}
