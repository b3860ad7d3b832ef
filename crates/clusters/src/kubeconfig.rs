//! Writes kubeconfig files: one cluster, one user, one context, all named like the cluster, keys inside.

use std::{net::SocketAddr, path::Path};

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::{
    error::Error,
    pki::{Pair, write_private},
};

/// Writes a kubeconfig for `https://<address>`, readable by its owner alone.
pub(crate) fn write(
    path: &Path,
    cluster: &str,
    address: SocketAddr,
    authority: &str,
    client: &Pair,
) -> Result<(), Error> {
    write_private(path, &text(cluster, address, authority, client))
}

fn text(cluster: &str, address: SocketAddr, authority: &str, client: &Pair) -> String {
    let encode = |pem: &str| BASE64_STANDARD.encode(pem);
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: {cluster}
  cluster:
    server: https://{address}
    certificate-authority-data: {authority}
users:
- name: {cluster}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: {cluster}
  context:
    cluster: {cluster}
    user: {cluster}
current-context: {cluster}
",
        authority = encode(authority),
        certificate = encode(&client.certificate),
        key = encode(&client.key),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_user_and_context_carry_the_name_of_the_cluster() {
        let pair = Pair { certificate: "C".to_string(), key: "K".to_string() };
        let config =
            kube::config::Kubeconfig::from_yaml(&text("member1", ([127, 0, 0, 1], 6443).into(), "A", &pair))
                .expect("valid YAML");
        assert_eq!(config.current_context.as_deref(), Some("member1"));
        let cluster = config.clusters[0].cluster.as_ref().expect("a cluster");
        assert_eq!(cluster.server.as_deref(), Some("https://127.0.0.1:6443"));
        assert_eq!(config.contexts[0].context.as_ref().expect("a context").cluster, "member1");
    }
}
