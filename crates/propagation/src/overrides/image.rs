//! Changes parts of image references.
//!
//! References are taken apart by the grammar of the container world, but nothing is normalised: no default
//! registry, no `library/`, no `latest`. A reference with tag and digest loses the digest.

use std::sync::LazyLock;

use api::policy::{ImageComponent, ImageOverrider, OverriderOperator};
use regex::Regex;
use serde_json::Value;

use super::budget::Budget;
use super::{Error, pod_spec_path};
use crate::Object;

/// How much of a value is told that is not an image.
const SHOWN: usize = 256;

pub(super) fn apply(
    object: &mut Value,
    overriders: &[ImageOverrider],
    budget: &mut Budget,
) -> Result<(), Error> {
    for overrider in overriders {
        match &overrider.predicate {
            Some(predicate) => by_predicate(object, &predicate.path, overrider, budget)?,
            None => by_kind(object, overrider, budget)?,
        }
    }
    Ok(())
}

fn by_predicate(
    object: &mut Value,
    path: &str,
    overrider: &ImageOverrider,
    budget: &mut Budget,
) -> Result<(), Error> {
    let fail = |reason: String| Error::Predicate { path: path.to_owned(), reason };
    let mut current = &mut *object;
    for token in path.trim_matches('/').split('/') {
        current = match current {
            Value::Object(map) => {
                map.get_mut(token).ok_or_else(|| fail(format!("{token} does not exist")))?
            }
            Value::Array(items) => {
                let index: usize = token.parse().map_err(|_| fail(format!("{token} is not an index")))?;
                items.get_mut(index).ok_or_else(|| fail(format!("index {index} is out of range")))?
            }
            other => {
                let kind = apimachinery::go::type_name(other);
                return Err(fail(format!("{token} is looked up in a {kind}")));
            }
        };
    }
    let Value::String(image) = current else { return Err(fail("the value is not a string".into())) };
    budget.bytes(image.len())?;
    let changed = change(image, overrider)?;
    // Reading is lenient about the leading slash, writing is not.
    if !path.starts_with('/') {
        return Err(Error::ImagePath);
    }
    *image = changed;
    Ok(())
}

fn by_kind(object: &mut Value, overrider: &ImageOverrider, budget: &mut Budget) -> Result<(), Error> {
    let Some(path) = pod_spec_path(object.kind()) else { return Ok(()) };
    let Some(Value::Array(containers)) = object.pointer_mut(&format!("{path}/containers")) else {
        return Ok(());
    };
    for container in containers {
        let image = container.get("image").and_then(Value::as_str).unwrap_or("");
        budget.steps(1)?;
        budget.bytes(image.len())?;
        let changed = change(image, overrider)?;
        if let Value::Object(container) = container {
            container.insert("image".into(), changed.into());
        }
    }
    Ok(())
}

fn change(image: &str, overrider: &ImageOverrider) -> Result<String, Error> {
    let mut reference = Reference::parse(image).map_err(|reason| Error::Image {
        image: image.chars().take(SHOWN).collect(),
        reason: reason.to_owned(),
    })?;
    reference.change(&overrider.component, &overrider.operator, &overrider.value)?;
    Ok(reference.print())
}

/// An image reference in parts; at most one of tag and digest is set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct Reference {
    hostname: String,
    repository: String,
    tag: String,
    digest: String,
}

// The grammar of distribution/reference, anchored: name, optional tag, optional digest.
static REFERENCE: LazyLock<Regex> = LazyLock::new(|| {
    let label = "(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])";
    let ipv6 = r"\[(?:[a-fA-F0-9:]+)\]";
    let domain = format!(r"(?:{label}(?:\.{label})*|{ipv6})(?::[0-9]+)?");
    let component = "[a-z0-9]+(?:(?:[._]|__|[-]+)[a-z0-9]+)*";
    let name = format!("(?:{domain}/)?{component}(?:/{component})*");
    let digest = "[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*[:][0-9a-fA-F]{32,}";
    Regex::new(&format!(r"^({name})(?::([\w][\w.-]{{0,127}}))?(?:@({digest}))?$"))
        .expect("the grammar is valid")
});

static TAG: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^[0-9A-Za-z_][0-9A-Za-z_.-]{0,127}$").expect("the pattern is valid"));

static DIGEST: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new("^[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*[:][0-9a-fA-F]{32,}$")
        .expect("the pattern is valid")
});

impl Reference {
    fn parse(image: &str) -> Result<Self, &'static str> {
        const INVALID: &str = "invalid reference format";
        if image.is_empty() {
            return Err("repository name must have at least one component");
        }
        let Some(parts) = REFERENCE.captures(image) else {
            let lowered = image.to_lowercase();
            return Err(if REFERENCE.is_match(&lowered) {
                "repository name must be lowercase"
            } else {
                INVALID
            });
        };
        let part = |index| parts.get(index).map_or("", |found| found.as_str());
        let (name, tag, digest) = (part(1), part(2), part(3));
        if !tag.is_ascii() {
            return Err(INVALID);
        }
        let (hostname, repository) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => (first, rest),
            _ => ("", name),
        };
        if name.len() > 255 {
            return Err("repository name must not be more than 255 characters");
        }
        check_digest(digest)?;
        let digest = if tag.is_empty() { digest } else { "" };
        Ok(Self {
            hostname: hostname.into(),
            repository: repository.into(),
            tag: tag.into(),
            digest: digest.into(),
        })
    }

    fn change(
        &mut self,
        component: &ImageComponent,
        operator: &OverriderOperator,
        value: &str,
    ) -> Result<(), Error> {
        let part = match component {
            ImageComponent::Registry => &mut self.hostname,
            ImageComponent::Repository => &mut self.repository,
            ImageComponent::Tag => return self.change_tag(operator, value),
            // Admission knows no other component; upstream does nothing with one.
            ImageComponent::Other(_) => return Ok(()),
        };
        match operator {
            OverriderOperator::Add => part.push_str(value),
            OverriderOperator::Replace => *part = value.to_owned(),
            OverriderOperator::Remove => part.clear(),
            OverriderOperator::Other(_) => return Err(Error::UnsupportedOperator),
        }
        Ok(())
    }

    fn change_tag(&mut self, operator: &OverriderOperator, value: &str) -> Result<(), Error> {
        match operator {
            OverriderOperator::Add => {
                let current = if self.tag.is_empty() { &self.digest } else { &self.tag };
                self.set_tag(&format!("{current}{value}"));
            }
            OverriderOperator::Replace => self.set_tag(value),
            OverriderOperator::Remove if !self.tag.is_empty() => self.tag.clear(),
            OverriderOperator::Remove => self.digest.clear(),
            OverriderOperator::Other(_) => return Err(Error::UnsupportedOperator),
        }
        Ok(())
    }

    /// What is neither a tag nor a digest is ignored.
    fn set_tag(&mut self, value: &str) {
        if TAG.is_match(value) {
            self.tag = value.to_owned();
            self.digest.clear();
        } else if DIGEST.is_match(value) {
            self.digest = value.to_owned();
            self.tag.clear();
        }
    }

    fn print(&self) -> String {
        let mut text = String::new();
        if !self.hostname.is_empty() {
            text.push_str(&self.hostname);
            text.push('/');
        }
        text.push_str(&self.repository);
        if !self.tag.is_empty() {
            text.push(':');
            text.push_str(&self.tag);
        } else if !self.digest.is_empty() {
            text.push('@');
            text.push_str(&self.digest);
        }
        text
    }
}

fn check_digest(digest: &str) -> Result<(), &'static str> {
    let Some((algorithm, hex)) = digest.split_once(':') else { return Ok(()) };
    let length = match algorithm {
        "sha256" => 64,
        "sha384" => 96,
        "sha512" => 128,
        _ => return Err("unsupported digest algorithm"),
    };
    if hex.len() != length {
        return Err("invalid checksum digest length");
    }
    if hex.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err("invalid checksum digest format");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sha() -> String {
        format!("sha256:{}", "0a".repeat(32))
    }

    fn check(image: &str, component: &str, operator: &str, value: &str, expected: &str) {
        let overrider = ImageOverrider {
            predicate: None,
            component: ImageComponent::from(component),
            operator: OverriderOperator::from(operator),
            value: value.to_owned(),
        };
        assert_eq!(
            change(image, &overrider).as_deref(),
            Ok(expected),
            "{image} {component} {operator} {value}"
        );
    }

    #[test]
    fn parts_are_changed_as_told() {
        let digest = sha();
        check("perl:5.34.0", "Registry", "add", "reg.example", "reg.example/perl:5.34.0");
        check("reg.example/app:v1", "Registry", "add", ".cn", "reg.example.cn/app:v1");
        check("team/app:v1", "Registry", "remove", "", "team/app:v1");
        check("localhost/app", "Registry", "replace", "r.io", "r.io/app");
        check("r.io/team/app:v1", "Repository", "replace", "mirror/app", "r.io/mirror/app:v1");
        check("app", "Repository", "add", "-arm", "app-arm");
        check("app:v1", "Tag", "add", "-x", "app:v1-x");
        check("app", "Tag", "replace", &digest, &format!("app@{digest}"));
        check(&format!("app:v1@{digest}"), "Tag", "remove", "", "app");
        check("r.io/app:v1", "Repository", "remove", "", "r.io/:v1");
        check(&format!("app@{digest}"), "Tag", "replace", "v2", "app:v2");
        check(&format!("app@{digest}"), "Tag", "remove", "", "app");
        check("app:v1", "Tag", "replace", "not a tag", "app:v1");
        check("localhost:5000/app", "Registry", "replace", "r.io:80", "r.io:80/app");
    }

    #[test]
    fn an_unreadable_reference_is_refused() {
        let refuse = |image: &str| Reference::parse(image).expect_err("not a reference");
        assert_eq!(refuse(""), "repository name must have at least one component");
        assert_eq!(refuse("App:v1"), "repository name must be lowercase");
        assert_eq!(refuse("app:v1:v2"), "invalid reference format");
        assert_eq!(refuse("app@sha256:0a"), "invalid reference format");
        assert_eq!(refuse(&format!("app@md5:{}", "0a".repeat(16))), "unsupported digest algorithm");
        assert_eq!(refuse(&"a".repeat(256)), "repository name must not be more than 255 characters");
    }
}
