//! Are the defaults of a schema themselves valid? Checked when a CRD is written, so that reading never has to doubt.

use super::{NodeId, Schema};
use crate::field::{Error, Errors, Path};

impl Schema {
    /// Checks every default: nothing the schema does not specify, nothing it would refuse.
    pub fn check_defaults(&self, path: &Path) -> Errors {
        let mut errors = Errors::new();
        self.defaults_below(0, path, &mut errors);
        errors
    }

    fn defaults_below(&self, id: NodeId, path: &Path, errors: &mut Errors) {
        let node = self.node(id);
        if let Some(default) = &node.default {
            let path = path.child("default");
            let mut pruned = default.clone();
            self.prune_value(&mut pruned, id);
            if pruned != *default {
                errors.push(Error::invalid(&path, default.clone(), "must not have unknown fields"));
            }
            errors.extend(self.validate_value(default, None, id, Some(&path)));
        }
        if let Some(items) = node.items {
            self.defaults_below(items, &path.child("items"), errors);
        }
        for (name, property) in &node.properties {
            self.defaults_below(*property, &path.child("properties").key(name), errors);
        }
    }
}
