//! Which tag an image reference carries, as far as `imagePullPolicy` asks.

/// Returns the pull policy an image gets when none is written: `Always` for the tag `latest` and for a
/// reference with neither tag nor digest, else `IfNotPresent`. A reference that cannot be parsed has no
/// tag, and validation will have its say later.
pub(super) fn pull_policy(reference: &str) -> &'static str {
    if tag(reference) == Some("latest") { "Always" } else { "IfNotPresent" }
}

/// Returns the tag; `latest` where neither tag nor digest is given, `None` with only a digest or for nonsense.
fn tag(reference: &str) -> Option<&str> {
    let (name_and_tag, digest) = match reference.split_once('@') {
        Some((head, digest)) => (head, Some(digest)),
        None => (reference, None),
    };
    if digest.is_some_and(|digest| !is_digest(digest)) {
        return None;
    }
    // A colon before the last slash belongs to the registry's port.
    let after_slash = name_and_tag.rfind('/').map_or(0, |slash| slash.saturating_add(1));
    let (name, tag) = match name_and_tag[after_slash..].find(':') {
        Some(colon) => {
            let (name, tag) = name_and_tag.split_at(after_slash.saturating_add(colon));
            (name, tag.strip_prefix(':'))
        }
        None => (name_and_tag, None),
    };
    if !is_name(name) || tag.is_some_and(|tag| !is_tag(tag)) {
        return None;
    }
    match (tag, digest) {
        (Some(tag), _) => Some(tag),
        (None, Some(_)) => None,
        (None, None) => Some("latest"),
    }
}

fn is_digest(digest: &str) -> bool {
    digest.split_once(':').is_some_and(|(algorithm, hex)| {
        !algorithm.is_empty() && hex.len() >= 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

fn is_tag(tag: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (1..=128).contains(&tag.len())
        && tag.bytes().next().is_some_and(word)
        && tag.bytes().all(|byte| word(byte) || byte == b'.' || byte == b'-')
}

fn is_name(name: &str) -> bool {
    // 64 hex digits are an image ID, not a name.
    if name.len() == 64 && name.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return false;
    }
    let path = match name.split_once('/') {
        Some((domain, path)) if is_domain(domain) => path,
        _ => name,
    };
    !path.is_empty() && path.split('/').all(is_component)
}

fn is_domain(first: &str) -> bool {
    first.contains(['.', ':'])
        || first == "localhost"
        || (!first.is_empty() && first.bytes().any(|byte| byte.is_ascii_uppercase()))
}

fn is_component(component: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = component.as_bytes();
    bytes.first().is_some_and(|first| plain(*first))
        && bytes.last().is_some_and(|last| plain(*last))
        && bytes.iter().all(|&byte| plain(byte) || matches!(byte, b'.' | b'_' | b'-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_latest_and_bare_names_are_always_pulled() {
        let digest = "sha256:".to_owned() + &"a".repeat(64);
        for (reference, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("nginx:1.27", "IfNotPresent"),
            ("registry:5000/app", "Always"),
            ("registry:5000/app:v1", "IfNotPresent"),
            ("localhost/app", "Always"),
            (&format!("nginx@{digest}"), "IfNotPresent"),
            (&format!("nginx:latest@{digest}"), "Always"),
            ("Not/A/Name", "IfNotPresent"),
            ("", "IfNotPresent"),
            ("a b", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(reference), policy, "{reference}");
        }
    }
}
