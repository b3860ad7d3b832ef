//! Kubeconfigs that another cluster wrote: in Secrets of a management cluster, and of members that are taken out.

use member::kubeconfig::{Access, KUBECONFIG_LIMIT};

pub(super) fn read(input: &[u8]) -> String {
    for context in [None, Some("a"), Some("b")] {
        let _ = Access::read_context(input, context).is_ok();
    }
    let access = match Access::read(input) {
        Ok(access) => access,
        Err(refused) => {
            let refused = refused.to_string();
            assert!(refused.len() <= 512, "{} bytes", refused.len());
            return refused;
        }
    };
    assert!(input.len() <= KUBECONFIG_LIMIT, "{} bytes", input.len());
    let Ok(made) = access.kubeconfig() else { return "of no use".to_owned() };
    let [cluster] = made.clusters.as_slice() else { panic!("{} clusters", made.clusters.len()) };
    let cluster = cluster.cluster.as_ref().expect("the cluster");
    assert_eq!(cluster.certificate_authority, None, "it names a file");
    let server = cluster.server.clone().unwrap_or_default();
    let address: http::Uri = server.parse().expect("it was read before");
    assert_eq!(address.scheme_str(), Some("https"), "{server}");
    assert!(address.authority().is_some_and(|authority| !authority.as_str().contains('@')), "{server}");
    let [user] = made.auth_infos.as_slice() else { panic!("{} users", made.auth_infos.len()) };
    let user = user.auth_info.as_ref().expect("the user");
    assert!(user.exec.is_none() && user.auth_provider.is_none(), "it names a program");
    let files = [&user.token_file, &user.client_certificate, &user.client_key];
    assert!(files.iter().all(|file| file.is_none()), "it names a file");
    assert!(user.impersonate.is_none() && user.impersonate_groups.is_none(), "it says who it wants to be");
    format!("of use, {}", cluster.proxy_url.is_some())
}
