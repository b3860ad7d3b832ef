//! How a server finds a webhook: by URL or by Service. What is wrong with either, in upstream's words.

use crate::field::{Error, Errors, Path};
use crate::names;

/// How many steps of a path are complained about.
const MOST_STEPS: usize = 10;

const FORM: &str = "; desired format: https://host[/path]";

/// Checks the URL of a webhook.
pub fn url(path: &Path, url: &str, errors: &mut Errors) {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", ""));
    if scheme != "https" {
        let detail = format!("'https' is the only allowed URL scheme{FORM}");
        errors.push(Error::invalid(path, scheme, detail));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = address.split('/').next().unwrap_or_default();
    let (user, host) = match authority.rsplit_once('@') {
        Some((user, host)) => (Some(user), host),
        None => (None, authority),
    };
    if host.is_empty() {
        errors.push(Error::invalid(path, "", format!("host must be specified{FORM}")));
    }
    if let Some(user) = user {
        errors.push(Error::invalid(path, user, "user information is not permitted in the URL"));
    }
    if !fragment.is_empty() {
        errors.push(Error::invalid(path, fragment, "fragments are not permitted in the URL"));
    }
    if !query.is_empty() {
        errors.push(Error::invalid(path, query, "query parameters are not permitted in the URL"));
    }
}

/// A reference to a Service.
#[derive(Debug, Clone, Copy)]
pub struct Service<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub path: Option<&'a str>,
    pub port: i64,
}

/// Checks the Service of a webhook.
pub fn service(path: &Path, service: &Service<'_>, errors: &mut Errors) {
    for (field, value) in [("name", service.name), ("namespace", service.namespace)] {
        if value.is_empty() {
            errors.push(Error::required(&path.child(field), ""));
        }
    }
    let wrong = names::port_number(service.port);
    if !wrong.is_empty() {
        let detail = format!("port is not valid: {}", wrong.join(", "));
        errors.push(Error::invalid(&path.child("port"), service.port, detail));
    }
    let Some(given) = service.path.filter(|given| !given.is_empty() && *given != "/") else { return };
    let at = path.child("path");
    if given == "//" {
        errors.push(Error::invalid(&at, given, "segment[0] may not be empty"));
        return;
    }
    if !given.starts_with('/') {
        errors.push(Error::invalid(&at, given, "must start with a '/'"));
    }
    // Whatever the first character is, it is passed over.
    let steps = given.chars().next().map_or("", |first| &given[first.len_utf8()..]);
    let steps = steps.strip_suffix('/').unwrap_or(steps);
    let before = errors.len();
    for (index, step) in steps.split('/').enumerate() {
        // Each shows the whole path: without an end, a path of a million slashes would become a terabyte.
        if errors.len() >= before.saturating_add(MOST_STEPS) {
            break;
        }
        if step.is_empty() {
            errors.push(Error::invalid(&at, given, format!("segment[{index}] may not be empty")));
            continue;
        }
        for wrong in names::dns1123_subdomain(step) {
            errors.push(Error::invalid(&at, given, format!("segment[{index}]: {wrong}")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(check: impl FnOnce(&Path, &mut Errors)) -> Vec<String> {
        let mut errors = Errors::new();
        check(&Path::new("at"), &mut errors);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_url_is_nothing_but_a_host_and_a_path() {
        let wrong = |text: &str| wrong(|path, errors| url(path, text, errors));
        assert!(wrong("https://example.com/hook").is_empty());
        assert_eq!(
            wrong("http://a"),
            [
                "at: Invalid value: \"http\": 'https' is the only allowed URL scheme; desired format: https://host[/path]"
            ]
        );
        assert_eq!(
            wrong("https://u@a/?b=c"),
            [
                "at: Invalid value: \"u\": user information is not permitted in the URL",
                "at: Invalid value: \"b=c\": query parameters are not permitted in the URL",
            ]
        );
    }

    #[test]
    fn a_service_has_two_names_a_port_and_a_tidy_path() {
        let errors_of = |path: &str| {
            let given = Service { namespace: "n", name: "s", path: Some(path), port: 443 };
            wrong(|at, errors| service(at, &given, errors))
        };
        assert!(errors_of("/a/b").is_empty());
        assert!(errors_of("/").is_empty());
        assert_eq!(
            errors_of("x//y"),
            [
                "at.path: Invalid value: \"x//y\": must start with a '/'",
                "at.path: Invalid value: \"x//y\": segment[0] may not be empty",
                "at.path: Invalid value: \"x//y\": segment[1] may not be empty",
            ]
        );
        assert_eq!(errors_of(&"/".repeat(1 << 20)).len(), MOST_STEPS, "each of them shows the path");
        let nothing = Service { namespace: "", name: "", path: None, port: 0 };
        assert_eq!(wrong(|at, errors| service(at, &nothing, errors)).len(), 3);
    }
}
