//! Audit annotations about mutating webhooks, in the words and the order of fields that upstream uses.

use serde::Serialize;
use serde_json::Value;

use super::configuration::Hook;
use crate::handlers::context::Context;

/// One call of a mutating webhook among the calls for a request.
pub(super) struct Place<'a> {
    pub(super) hook: &'a Hook,
    pub(super) second: bool,
    /// The position among all configured webhooks.
    pub(super) index: usize,
}

#[derive(Serialize)]
struct Mutation<'a> {
    configuration: &'a str,
    webhook: &'a str,
    mutated: bool,
}

#[derive(Serialize)]
struct Patch<'a> {
    configuration: &'a str,
    webhook: &'a str,
    patch: &'a [Value],
    #[serde(rename = "patchType")]
    patch_type: &'a str,
}

impl Place<'_> {
    fn key(&self, about: &str) -> String {
        let round = u8::from(self.second);
        format!("{about}.webhook.admission.k8s.io/round_{round}_index_{}", self.index)
    }

    /// Notes whether the webhook changed the object.
    pub(super) fn note_mutation(&self, context: &Context, mutated: bool) {
        let note = Mutation { configuration: &self.hook.configuration, webhook: &self.hook.name, mutated };
        context.annotate(&self.key("mutation"), print(&note));
    }

    /// Notes what the webhook changed, for an audit log that keeps the content of requests.
    pub(super) fn note_patch(&self, context: &Context, patch: &[Value]) {
        let note = Patch {
            configuration: &self.hook.configuration,
            webhook: &self.hook.name,
            patch,
            patch_type: "JSONPatch",
        };
        context.annotate_request(&self.key("patch"), print(&note));
    }

    /// Notes that the webhook could not be called, and that the request continued.
    pub(super) fn note_failed_open(&self, context: &Context) {
        context.annotate(&self.key("failed-open.mutation"), self.hook.name.clone());
    }
}

fn print(note: &impl Serialize) -> String {
    serde_json::to_string(note).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_stand_in_the_order_of_upstream() {
        let mutation = Mutation { configuration: "c", webhook: "w", mutated: true };
        assert_eq!(print(&mutation), r#"{"configuration":"c","webhook":"w","mutated":true}"#);
        let operations = [json!({"value": "v", "op": "add", "path": "/a"})];
        let patch = Patch { configuration: "c", webhook: "w", patch: &operations, patch_type: "JSONPatch" };
        assert_eq!(
            print(&patch),
            r#"{"configuration":"c","webhook":"w","patch":[{"op":"add","path":"/a","value":"v"}],"patchType":"JSONPatch"}"#
        );
    }
}
