//! Security contexts of pods and containers.

use std::collections::HashSet;

use apimachinery::field::{Error, Errors, Path};
use apimachinery::names;
use serde_json::Value;

use super::check;
use super::node::Node;

fn id(errors: &mut Errors, path: &Path, value: Node<'_>) {
    if let Some(id) = value.opt_int() {
        errors.extend(names::unix_id(id).into_iter().map(|text| Error::invalid(path, id, text)));
    }
}

pub(super) fn pod(errors: &mut Errors, spec: Node<'_>, path: &Path) {
    let (context, path) = (spec.at("securityContext"), path.child("securityContext"));
    for field in ["fsGroup", "runAsUser", "runAsGroup"] {
        id(errors, &path.child(field), context.at(field));
    }
    for (index, group) in context.at("supplementalGroups").items().enumerate() {
        id(errors, &path.child("supplementalGroups").index(index), group);
    }
    if spec.at("shareProcessNamespace").flag() && spec.at("hostPID").flag() {
        let text = "ShareProcessNamespace and HostPID cannot both be enabled";
        errors.push(Error::invalid(&path.child("shareProcessNamespace"), true, text));
    }
    sysctls(errors, context.at("sysctls"), &path.child("sysctls"));
    check::optional_enum(
        errors,
        &path.child("fsGroupChangePolicy"),
        context.at("fsGroupChangePolicy"),
        &["Always", "OnRootMismatch"],
    );
    seccomp(errors, context.at("seccompProfile"), &path.child("seccompProfile"));
    app_armor(errors, context.at("appArmorProfile"), &path.child("appArmorProfile"));
    check::optional_enum(
        errors,
        &path.child("supplementalGroupsPolicy"),
        context.at("supplementalGroupsPolicy"),
        &["Merge", "Strict"],
    );
    check::optional_enum(
        errors,
        &path.child("seLinuxChangePolicy"),
        context.at("seLinuxChangePolicy"),
        &["MountOption", "Recursive"],
    );
}

pub(super) fn container(errors: &mut Errors, context: Node<'_>, path: &Path) {
    for field in ["runAsUser", "runAsGroup"] {
        id(errors, &path.child(field), context.at(field));
    }
    check::optional_enum(errors, &path.child("procMount"), context.at("procMount"), &["Default", "Unmasked"]);
    seccomp(errors, context.at("seccompProfile"), &path.child("seccompProfile"));
    if context.at("allowPrivilegeEscalation").0 == Some(&Value::Bool(false)) {
        if context.at("privileged").flag() {
            let text = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true";
            errors.push(Error::invalid(path, context.value(), text));
        }
        if context.dig(&["capabilities", "add"]).texts().contains(&"CAP_SYS_ADMIN") {
            let text = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            errors.push(Error::invalid(path, context.value(), text));
        }
    }
    app_armor(errors, context.at("appArmorProfile"), &path.child("appArmorProfile"));
}

const PROFILES: [&str; 3] = ["Localhost", "RuntimeDefault", "Unconfined"];

fn seccomp(errors: &mut Errors, profile: Node<'_>, path: &Path) {
    if !profile.exists() {
        return;
    }
    let kind = profile.at("type").text();
    if kind.is_empty() {
        errors.push(Error::required(&path.child("type"), "type is required when seccompProfile is set"));
    } else if !PROFILES.contains(&kind) {
        errors.push(Error::not_supported(&path.child("type"), kind, &PROFILES));
    }
    let at = path.child("localhostProfile");
    match (kind, profile.at("localhostProfile").opt_text()) {
        ("Localhost", None) => {
            errors.push(Error::required(&at, "must be set when seccomp type is Localhost"))
        }
        ("Localhost", Some(file)) => check::descending_path(errors, &at, file),
        (_, Some(_)) => {
            let text = "can only be set when seccomp type is Localhost";
            errors.push(Error::invalid(&at, profile.value(), text));
        }
        (_, None) => {}
    }
}

fn app_armor(errors: &mut Errors, profile: Node<'_>, path: &Path) {
    if !profile.exists() {
        return;
    }
    let at = path.child("localhostProfile");
    let required = || Error::required(&at, "must be set when AppArmor type is Localhost");
    match (profile.at("type").text(), profile.at("localhostProfile").opt_text()) {
        ("Localhost", None) => errors.push(required()),
        ("Localhost", Some(name)) if name.trim() != name => {
            errors.push(Error::invalid(&at, name, "must not be padded with whitespace"));
        }
        ("Localhost", Some("")) => errors.push(required()),
        ("Localhost", Some(_)) => {}
        ("RuntimeDefault" | "Unconfined", Some(name)) => {
            errors.push(Error::invalid(&at, name, "can only be set when AppArmor type is Localhost"));
        }
        ("RuntimeDefault" | "Unconfined", None) => {}
        ("", _) => {
            let text = "type is required when appArmorProfile is set";
            errors.push(Error::required(&path.child("type"), text));
        }
        (kind, _) => errors.push(Error::not_supported(&path.child("type"), kind, &PROFILES)),
    }
}

fn sysctls(errors: &mut Errors, sysctls: Node<'_>, path: &Path) {
    let mut seen: HashSet<String> = HashSet::new();
    for (index, sysctl) in sysctls.items().enumerate() {
        let at = path.index(index).child("name");
        let name = sysctl.at("name").text();
        if name.is_empty() {
            errors.push(Error::required(&at, ""));
        } else if !is_sysctl(name) {
            let text = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            errors.push(Error::invalid(&at, name, text));
        } else if seen.contains(&name.replace('/', ".")) {
            errors.push(Error::duplicate(&at, name));
        }
        seen.insert(name.replace('/', "."));
    }
}

fn is_sysctl(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.len() <= 253
        && name.split(['.', '/']).all(|part| {
            let bytes = part.as_bytes();
            bytes.first().is_some_and(|first| plain(*first))
                && bytes.last().is_some_and(|last| plain(*last))
                && bytes.iter().all(|&byte| plain(byte) || matches!(byte, b'-' | b'_'))
        })
}
