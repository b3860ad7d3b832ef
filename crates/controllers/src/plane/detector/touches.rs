//! Why templates are in the queue: the changes that were seen of each, until it has been reconciled.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::decide::Touch;
use crate::plane::templates::TemplateKey;

/// The changes that were seen of templates in the queue; cheap to clone, all clones share the same data.
#[derive(Clone, Default)]
pub(super) struct Touches(Arc<Mutex<HashMap<TemplateKey, Touch>>>);

impl Touches {
    pub(super) fn add(&self, key: TemplateKey, touch: Touch) {
        self.0.lock().entry(key).or_default().add(touch);
    }

    /// Takes the changes that were seen of a template. They are put back, merged with those seen meanwhile,
    /// unless the template was reconciled: an attempt that fails or panics must not forget that a user has
    /// changed something.
    pub(super) fn take(&self, key: &TemplateKey) -> Taken {
        let touch = self.0.lock().remove(key).unwrap_or_default();
        Taken { touches: self.clone(), key: key.clone(), touch, settled: false }
    }
}

/// The changes that were seen of a template that is being reconciled.
pub(super) struct Taken {
    touches: Touches,
    key: TemplateKey,
    touch: Touch,
    settled: bool,
}

impl Taken {
    pub(super) fn touch(&self) -> Touch {
        self.touch
    }

    /// Marks the template as reconciled.
    pub(super) fn settle(mut self) {
        self.settled = true;
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        if !self.settled && self.touch != Touch::default() {
            self.touches.add(self.key.clone(), self.touch);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const BY_USER: Touch = Touch { by_user: true, fresh: false };
    const FRESH: Touch = Touch { by_user: false, fresh: true };

    fn key() -> TemplateKey {
        TemplateKey::of(&json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a" } }))
    }

    #[test]
    fn what_was_seen_adds_up_and_is_taken_once() {
        let touches = Touches::default();
        touches.add(key(), BY_USER);
        touches.add(key(), FRESH);
        let taken = touches.take(&key());
        assert_eq!(taken.touch(), Touch { by_user: true, fresh: true });
        assert_eq!(touches.take(&key()).touch(), Touch::default());
        taken.settle();
        assert_eq!(touches.take(&key()).touch(), Touch::default());
    }

    #[test]
    fn what_was_not_looked_after_comes_back_with_what_was_seen_meanwhile() {
        let touches = Touches::default();
        touches.add(key(), BY_USER);
        let taken = touches.take(&key());
        touches.add(key(), FRESH);
        drop(taken);
        assert_eq!(touches.take(&key()).touch(), Touch { by_user: true, fresh: true });
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            touches.add(key(), BY_USER);
            let _taken = touches.take(&key());
            panic!("on purpose");
        }));
        assert!(panicked.is_err());
        assert_eq!(touches.take(&key()).touch(), Touch { by_user: true, fresh: true });
    }

    #[test]
    fn nothing_is_kept_of_what_nobody_touched() {
        let touches = Touches::default();
        drop(touches.take(&key()));
        assert!(touches.0.lock().is_empty());
    }
}
