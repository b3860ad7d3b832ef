//! Creates and changes objects: the only way into the store.
//!
//! A write is a loop around a compare-and-set: read, compute, admit, validate, commit. A write that loses the race starts over
//! from the newer object, unless the client insisted on a revision.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use apimachinery::depth;
use apimachinery::field::{self, Path};
use apimachinery::gvk::Gvk;
use apimachinery::object::Object;
use apimachinery::pointer;
use apimachinery::status::Status;
use jiff::Timestamp;
use native::prepare::service::Allocation;
use serde_json::{Map, Value};

use super::context::{Context, WriteOptions};
use super::decode;
use super::together::{Commit, Done, Put};
use crate::admission::webhooks::{Occasion, Rounds};
use crate::admission::{Attributes, Operation, certificates, namespace, param_rights, priority};
use crate::auth::claims;
use crate::controllers::definitions;
use crate::conversion;
use crate::head::Head;
use crate::object::{self, Entry};
use crate::registry::{Kind, Source};
use crate::server::Server;

/// The target of a write.
#[derive(Debug, Clone, Copy)]
pub struct Target<'a> {
    pub server: &'a Arc<Server>,
    pub context: &'a Context,
    pub kind: &'a Arc<Kind>,
    pub namespace: &'a str,
    pub name: &'a str,
    /// Empty for the object itself, else `status`, `approval`, `finalize`, …
    pub subresource: &'a str,
    /// The write came through the scale of the object; then `subresource` is empty.
    pub scale: bool,
    pub options: &'a WriteOptions,
}

/// The result of a write.
#[derive(Debug)]
pub struct Outcome {
    pub object: Value,
    pub created: bool,
}

/// How the new state of an object is computed from the old one.
pub trait Change: Send + Sync {
    /// Returns the new object, in canonical form and with defaults; `None` leaves the object unchanged and skips admission. The
    /// old object is given as the client would read it.
    fn new_object(&self, old: &Value) -> Result<Option<Value>, Status>;

    /// A patch need not have a revision, whatever the kind requires.
    fn is_patch(&self) -> bool;

    /// Returns the object to create if none exists.
    fn create(&self) -> Option<Result<Value, Status>> {
        None
    }

    /// Returns whether the change tracks field ownership itself.
    fn manages_fields(&self) -> bool {
        false
    }
}

impl Target<'_> {
    fn key(&self) -> Box<str> {
        object::join_key(self.namespace, self.name)
    }

    /// Creates an object that was decoded and defaulted.
    pub async fn create(&self, object: Value) -> Result<Outcome, Status> {
        self.create_with(object, false).await
    }

    async fn create_with(&self, mut object: Value, fields_managed: bool) -> Result<Outcome, Status> {
        self.settle_namespace(&mut object)?;
        // A value that is not a number is ignored, as upstream.
        if object.resource_version().parse::<u64>().is_ok_and(|revision| revision != 0) {
            return Err(Status::bare_internal("resourceVersion should not be set on objects to be created"));
        }
        self.wipe_system_metadata(&mut object);
        if self.kind.needs_no_name() && object.name().is_empty() && object.meta("generateName").is_empty() {
            // The one kind that needs no name.
            let name = uuid::Uuid::new_v4().to_string();
            object.metadata_mut().insert("name".to_owned(), name.into());
        }
        let given_name = object.name().to_owned();
        self.grounds(&given_name)?;
        if !fields_managed {
            // Fields that the server itself adds from here on have no manager.
            crate::field_ownership::track(self, None, &mut object);
        }
        self.mutate(Operation::Create, &mut object, None).await?;

        let prefix = object.meta("generateName").to_owned();
        let generated = given_name.is_empty() && !prefix.is_empty();
        let mut attempts: u8 = if generated { 8 } else { 1 };
        let mut blank = object;
        loop {
            // Only a generated name is tried again.
            let mut object = if generated { blank.clone() } else { blank.take() };
            attempts = attempts.saturating_sub(1);
            let now = Timestamp::now();
            let uid = uuid::Uuid::new_v4().to_string();
            {
                let metadata = object.metadata_mut();
                if generated {
                    metadata.insert("name".to_owned(), generate_name(&prefix).into());
                }
                metadata.insert("uid".to_owned(), uid.clone().into());
                metadata.insert("creationTimestamp".to_owned(), second(now).into());
                if self.kind.rules.generation {
                    metadata.insert("generation".to_owned(), 1.into());
                }
            }
            self.prepare_create(&mut object, now, &uid)?;
            let name = object.name().to_owned();
            decode::validate_type(self.kind, &object)?;
            // What the Service asked for: another one may be quicker, and then it is given something else.
            let asked = self.kind.holds_addresses().then(|| object.get("spec").cloned().unwrap_or_default());
            let held = self.server.assign(self, &mut object, None)?;
            let mut errors = self.kind.validate_create(&object);
            if errors.is_empty() {
                errors.extend(self.unreadable(&object, None));
            }
            if !errors.is_empty() {
                return Err(self.invalid(&name, &errors));
            }
            self.warnings(&object, None);
            certificates::check_create(self.kind, &name, &object)?;
            let options = self.admission_options(Operation::Create);
            self.admit(Operation::Create, Some(&mut object), None, &name, &options).await?;
            check_depth(&object, None)?;
            match self.commit_new(&name, &mut object, asked, held).await? {
                Some(revision) => {
                    object::stamp(&mut object, &self.kind.api_version, &self.kind.gvk.kind, revision);
                    return Ok(Outcome { object, created: true });
                }
                None if generated && attempts > 0 => {}
                None => return Err(self.already_exists(&name, generated)),
            }
        }
    }

    /// Returns the entries on which a new object depends, as they are now: its namespace and its definition. Refuses the object
    /// if one of them is being deleted: the controller that empties it relies on nothing new being created.
    pub(super) fn grounds(&self, name: &str) -> Result<Vec<store::Unchanged>, Status> {
        let namespace = namespace::check_create(self.server, self.kind, self.namespace, name)?;
        let definition = self.definition(name)?;
        let rests = |collection: &str, entry: Arc<Entry>| store::Unchanged {
            collection: collection.into(),
            name: entry.name.clone(),
            revision: entry.modified,
        };
        let namespace = namespace.map(|entry| rests("namespaces", entry));
        let definition = definition.map(|entry| rests(definitions::COLLECTION, entry));
        Ok(namespace.into_iter().chain(definition).collect())
    }

    /// Returns the definition of the kind, if it has one that is not being deleted.
    fn definition(&self, name: &str) -> Result<Option<Arc<Entry>>, Status> {
        let Some(custom) = self.kind.custom() else { return Ok(None) };
        match self.server.store.get(definitions::COLLECTION, &custom.name) {
            // The kind is served for a moment longer.
            None => Err(Status::no_such_route()),
            Some(entry) if entry.head.deleting || custom.terminating => Err(Status::forbidden(
                &self.kind.resource,
                name,
                "create not allowed while custom resource definition is terminating",
            )),
            Some(entry) => Ok(Some(entry)),
        }
    }

    /// Commits a new object, which becomes what a client sees of it; `None` means that there is one of this name.
    async fn commit_new(
        &self,
        name: &str,
        object: &mut Value,
        asked: Option<Value>,
        mut held: Option<Allocation>,
    ) -> Result<Option<Option<u64>>, Status> {
        loop {
            self.server.before_commit(self, object, None)?;
            let encoded = conversion::encode(self.server, self.kind, object).await?;
            let committed = self.commit(Commit {
                operation: Operation::Create,
                name,
                object: Some(&mut *object),
                old: None,
                expect: store::Expect::Absent,
                change: Put::Encoded { value: encoded.body, schema: encoded.schema },
                held: held.as_ref(),
            });
            match (committed.await?, &asked) {
                (Done::Written(revision), _) => {
                    if let Some(seen) = encoded.seen {
                        *object = seen;
                    }
                    return Ok(Some(revision));
                }
                (Done::Taken, Some(asked)) => {
                    object["spec"] = asked.clone();
                    held = self.server.assign(self, object, None)?;
                }
                (Done::Lost | Done::Taken, _) => return Ok(None),
            }
        }
    }

    fn already_exists(&self, name: &str, generated: bool) -> Status {
        let mut status = Status::already_exists(&self.kind.resource, name);
        if generated {
            status.message.push_str(", the server was not able to generate a unique name for the object");
        } else if self
            .server
            .store
            .get(&self.kind.collection, &object::join_key(self.namespace, name))
            .is_some_and(|entry| entry.head.deleting)
        {
            status.message = format!("object is being deleted: {}", status.message);
        }
        status
    }

    /// Changes an object, or creates it if the change and the kind allow that.
    pub async fn update(&self, change: &dyn Change) -> Result<Outcome, Status> {
        loop {
            let Some(entry) = self.server.store.get(&self.kind.collection, &self.key()) else {
                let allowed = change.is_patch() || self.kind.rules.create_on_update;
                return match change.create().filter(|_| allowed && self.subresource.is_empty()) {
                    Some(object) => {
                        let mut object = object?;
                        self.server.authorize_also(self.context, "create")?;
                        object.metadata_mut().remove("resourceVersion");
                        self.create_with(object, change.manages_fields()).await
                    }
                    None => Err(Status::not_found(&self.kind.resource, self.name)),
                };
            };
            match self.try_update(&entry, change).await? {
                Some(outcome) => return Ok(outcome),
                None => continue,
            }
        }
    }

    /// One attempt: `None` means that another writer was faster and the attempt must be repeated.
    async fn try_update(&self, entry: &Arc<Entry>, change: &dyn Change) -> Result<Option<Outcome>, Status> {
        let shown = conversion::entry(self.server, self.kind, entry.clone()).await?;
        let old = self.server.read(self.kind, &shown)?;
        let Some(mut new) = change.new_object(&old)? else {
            let current = self.unchanged(entry).await?;
            return Ok(current.then_some(Outcome { object: old, created: false }));
        };
        let pinned = self.check_revision(&new, entry.modified, change.is_patch())?;
        self.check_uid(&new, &old, change.is_patch())?;
        if !change.is_patch() {
            dedup_owners(new.metadata_mut(), self.context, "");
        }
        if !change.manages_fields() {
            crate::field_ownership::track(self, Some(&old), &mut new);
        }
        self.mutate(Operation::Update, &mut new, Some(&old)).await?;
        self.restore_metadata(&mut new, &old);
        self.prepare_update(&mut new, &old)?;
        decode::validate_type(self.kind, &new)?;
        let held = self.server.assign(self, &mut new, Some(&old))?;
        let mut errors = claims::check_status(self, &new, &old);
        errors.extend(self.validate_update(&new, &old));
        if errors.is_empty() && self.subresource.is_empty() {
            errors.extend(self.unreadable(&new, Some(&old)));
        }
        if !errors.is_empty() {
            return Err(self.invalid(self.name, &errors));
        }
        self.warnings(&new, Some(&old));
        let user = &self.context.user;
        certificates::check_update(self.server, self.kind, user, self.subresource, &new, &old)?;
        let options = self.admission_options(Operation::Update);
        self.admit(Operation::Update, Some(&mut new), Some(&old), self.name, &options).await?;
        if is_finished(self.kind, &new, &old) {
            return self.finish_deletion(entry, new, &old).await;
        }
        check_depth(&new, Some(&old))?;
        self.server.before_commit(self, &new, Some(&old))?;
        new = apimachinery::server_side_apply::keep_times_if_equal(&old, new);
        let conversion::Encoded { body, seen, schema } =
            conversion::encode(self.server, self.kind, &new).await?;
        let same = !self.kind.is_custom() && self.kind.storage != self.kind.gvk && new == old;
        if body == entry.value || same {
            let current = self.unchanged(entry).await?;
            return Ok(current.then_some(Outcome { object: old, created: false }));
        }
        let committed = self.commit(Commit {
            operation: Operation::Update,
            name: self.name,
            object: Some(&mut new),
            old: Some(&old),
            expect: store::Expect::Revision(entry.modified),
            change: Put::Encoded { value: body, schema },
            held: held.as_ref(),
        });
        let committed = committed.await?;
        new = seen.unwrap_or(new);
        match committed {
            Done::Written(revision) => {
                object::stamp(
                    &mut new,
                    &self.kind.api_version,
                    &self.kind.gvk.kind,
                    revision.or(Some(entry.modified)),
                );
                Ok(Some(Outcome { object: new, created: false }))
            }
            Done::Lost if pinned => Err(Status::modified(&self.kind.resource, self.name)),
            Done::Lost | Done::Taken => Ok(None),
        }
    }

    /// Removes the object: the update removed the last finalizer.
    async fn finish_deletion(
        &self,
        entry: &Arc<Entry>,
        mut new: Value,
        old: &Value,
    ) -> Result<Option<Outcome>, Status> {
        let committed = self.commit(Commit {
            operation: Operation::Delete,
            name: self.name,
            object: None,
            old: Some(old),
            expect: store::Expect::Revision(entry.modified),
            change: Put::Nothing,
            held: None,
        });
        let Done::Written(revision) = committed.await? else { return Ok(None) };
        if revision.is_some() {
            object::stamp(&mut new, &self.kind.api_version, &self.kind.gvk.kind, revision);
        }
        Ok(Some(Outcome { object: new, created: false }))
    }

    pub(super) fn settle_namespace(&self, object: &mut Value) -> Result<(), Status> {
        let given = object.namespace().to_owned();
        let metadata = object.metadata_mut();
        if !self.kind.namespaced {
            metadata.remove("namespace");
        } else if given.is_empty() {
            metadata.insert("namespace".to_owned(), self.namespace.into());
        } else if given != self.namespace {
            return Err(Status::bad_request(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Ok(())
    }

    fn wipe_system_metadata(&self, object: &mut Value) {
        let metadata = object.metadata_mut();
        for field in [
            "uid",
            "creationTimestamp",
            "deletionTimestamp",
            "deletionGracePeriodSeconds",
            "selfLink",
            "resourceVersion",
        ] {
            metadata.remove(field);
        }
        if self.kind.is_custom() || self.kind.rules.generation {
            metadata.remove("generation");
        }
        dedup_owners(metadata, self.context, "");
    }

    /// Checks the revision that the client sent. Returns whether it sent one.
    fn check_revision(&self, new: &Value, current: u64, is_patch: bool) -> Result<bool, Status> {
        let sent = new.resource_version();
        if sent.is_empty() || sent == "0" {
            if !is_patch && !self.kind.rules.unconditional_update && self.subresource != "scale" {
                let error = field::Error::invalid(
                    &Path::new("metadata").child("resourceVersion"),
                    0,
                    "must be specified for an update",
                );
                return Err(Status::invalid(
                    &self.kind.gvk.group,
                    &self.kind.resource.resource,
                    self.name,
                    &[error],
                ));
            }
            return Ok(false);
        }
        let Ok(revision) = sent.parse::<u64>() else {
            return Err(Status::bare_internal(format!(
                "strconv.ParseUint: parsing {sent:?}: invalid syntax"
            )));
        };
        if revision != current {
            return Err(Status::modified(&self.kind.resource, self.name));
        }
        // A patch carries the revision from which it was computed. The client pinned it only if the patch named it, and then it
        // was compared above.
        Ok(!is_patch)
    }

    fn check_uid(&self, new: &Value, old: &Value, is_patch: bool) -> Result<(), Status> {
        let (sent, stored) = (new.uid(), old.uid());
        if sent.is_empty() || sent == stored || is_patch {
            return Ok(());
        }
        Err(precondition(self.kind, self.namespace, self.name, sent, stored))
    }

    /// Restores fields that a client may leave out but not change. Mutating webhooks see the object before that.
    fn restore_metadata(&self, new: &mut Value, old: &Value) {
        let stored = old.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
        let tracks_generation = self.kind.is_custom() || self.kind.rules.generation;
        let metadata = new.metadata_mut();
        let mut keep = |field: &str, always: bool| match stored.get(field) {
            Some(value) if always || !metadata.contains_key(field) => {
                metadata.insert(field.to_owned(), value.clone());
            }
            None if always => {
                metadata.remove(field);
            }
            _ => {}
        };
        keep("uid", false);
        keep("namespace", true);
        keep("creationTimestamp", true);
        keep("deletionTimestamp", false);
        keep("deletionGracePeriodSeconds", false);
        keep("resourceVersion", true);
        if tracks_generation {
            keep("generation", true);
        }
        metadata.remove("selfLink");
        dedup_owners(metadata, self.context, " after mutating admission happens");
    }

    async fn mutate(
        &self,
        operation: Operation,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        let mut rounds = Rounds::default();
        let options = self.admission_options(operation);
        loop {
            self.mutate_by_plugins(operation, object, old).await?;
            let name = object.name().to_owned();
            if self.scale {
                self.mutate_scale(operation, object, old, &name, &options, &mut rounds).await?;
            } else {
                let occasion = self.occasion(operation, &self.kind.gvk, &name, &options);
                self.server.mutations.mutate(&occasion, object, old, &mut rounds).await?;
                self.server.webhooks.mutate(&occasion, &mut Some(object), old, &mut rounds).await?;
            }
            if !rounds.begin_second() {
                return Ok(());
            }
        }
    }

    async fn mutate_by_plugins(
        &self,
        operation: Operation,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), Status> {
        if self.server.pod_priority && self.subresource.is_empty() {
            priority::mutate(self.server, self.kind, operation, object, old)?;
        }
        if !self.server.admission.handles(operation, self.kind, self.subresource) {
            return Ok(());
        }
        let name = object.name().to_owned();
        let mut attributes = Attributes {
            operation,
            kind: self.kind,
            namespace: self.namespace,
            name: &name,
            subresource: self.subresource,
            user: &self.context.user,
            dry_run: self.options.dry_run,
            object: Some(object),
            old,
            warnings: Vec::new(),
        };
        let result = self.server.admission.mutate(&mut attributes).await;
        attributes.warnings.drain(..).for_each(|warning| self.context.warn(warning));
        result?;
        // Changes by a plug-in get the same treatment as the client's object.
        decode::canonicalise(self.kind, &self.kind.gvk, object)
            .map(|_| ())
            .map_err(|error| decode::cannot_handle(&self.kind.gvk, &self.kind.gvk, &error))
    }

    /// Shows webhooks the Scale of an object; of their changes, only the number of replicas counts.
    async fn mutate_scale(
        &self,
        operation: Operation,
        object: &mut Value,
        old: Option<&Value>,
        name: &str,
        options: &Value,
        rounds: &mut Rounds,
    ) -> Result<(), Status> {
        let gvk = super::scale::gvk();
        let mut shown = super::scale::owned(self.kind, object)?;
        let shown_old = old.map(|old| super::scale::owned(self.kind, old)).transpose()?;
        let occasion = self.occasion(operation, &gvk, name, options);
        self.server.mutations.mutate(&occasion, &mut shown, shown_old.as_ref(), rounds).await?;
        self.server.webhooks.mutate(&occasion, &mut Some(&mut shown), shown_old.as_ref(), rounds).await?;
        super::scale::set_replicas(self.kind, object, &shown)
    }

    /// Prepares an object that is answered but never stored in the same way as any object from a client: managed fields,
    /// namespace, mutating webhooks.
    pub async fn begin_answered(&self, gvk: &Gvk, object: &mut Value) -> Result<(), Status> {
        self.settle_namespace(object)?;
        self.wipe_system_metadata(object);
        crate::field_ownership::track_answered(gvk, self.subresource, &self.options.field_manager, object);
        let options = self.admission_options(Operation::Create);
        let name = object.name().to_owned();
        let mut rounds = Rounds::default();
        loop {
            let occasion = self.occasion(Operation::Create, gvk, &name, &options);
            self.server.webhooks.mutate(&occasion, &mut Some(object), None, &mut rounds).await?;
            if !rounds.begin_second() {
                return Ok(());
            }
        }
    }

    /// Calls the validating webhooks for an object that is answered but never stored. Policies are not evaluated, as upstream.
    pub async fn admit_answered(&self, gvk: &Gvk, object: &Value) -> Result<(), Status> {
        let options = self.admission_options(Operation::Create);
        let name = object.name();
        let occasion = self.occasion(Operation::Create, gvk, name, &options);
        self.server.webhooks.validate(&occasion, Some(object), None).await
    }

    fn occasion<'a>(
        &'a self,
        operation: Operation,
        gvk: &'a Gvk,
        name: &'a str,
        options: &'a Value,
    ) -> Occasion<'a> {
        Occasion {
            server: self.server,
            context: self.context,
            operation,
            kind: self.kind,
            gvk,
            subresource: if self.scale { "scale" } else { self.subresource },
            namespace: self.namespace,
            name,
            dry_run: self.options.dry_run,
            options,
        }
    }

    fn admission_options(&self, operation: Operation) -> Value {
        let kind = if operation == Operation::Create { "CreateOptions" } else { "UpdateOptions" };
        self.options.to_value(kind)
    }

    async fn admit(
        &self,
        operation: Operation,
        mut object: Option<&mut Value>,
        old: Option<&Value>,
        name: &str,
        options: &Value,
    ) -> Result<(), Status> {
        if self.server.admission.handles(operation, self.kind, self.subresource) {
            let mut attributes = Attributes {
                operation,
                kind: self.kind,
                namespace: self.namespace,
                name,
                subresource: self.subresource,
                user: &self.context.user,
                dry_run: self.options.dry_run,
                object: object.as_deref_mut(),
                old,
                warnings: Vec::new(),
            };
            let result = self.server.admission.validate(&mut attributes).await;
            attributes.warnings.drain(..).for_each(|warning| self.context.warn(warning));
            result?;
        }
        let webhooks = &self.server.webhooks;
        if self.scale {
            let gvk = super::scale::gvk();
            let scale = |object: &Value| super::scale::of(self.kind, object);
            let shown = object.as_deref().map(scale).transpose()?;
            let shown_old = old.map(scale).transpose()?;
            let occasion = self.occasion(operation, &gvk, name, options);
            self.server.policies.validate(&occasion, shown.as_ref(), shown_old.as_ref()).await?;
            return webhooks.validate(&occasion, shown.as_ref(), shown_old.as_ref()).await;
        }
        let occasion = self.occasion(operation, &self.kind.gvk, name, options);
        self.server.policies.validate(&occasion, object.as_deref(), old).await?;
        webhooks.validate(&occasion, object.as_deref(), old).await
    }

    /// Asks plug-ins and webhooks whether an object may be deleted.
    pub async fn admit_delete(&self, old: &Value, options: &Value) -> Result<(), Status> {
        let mut rounds = Rounds::default();
        // The deletion of a collection names no object, and so does the request to webhooks.
        let name = if self.context.info.verb == "deletecollection" { "" } else { self.name };
        let occasion = self.occasion(Operation::Delete, &self.kind.gvk, name, options);
        self.server.webhooks.mutate(&occasion, &mut None, Some(old), &mut rounds).await?;
        self.admit(Operation::Delete, None, Some(old), name, options).await
    }

    fn prepare_create(&self, object: &mut Value, now: Timestamp, uid: &str) -> Result<(), Status> {
        match &self.kind.source {
            Source::Native => {
                let extra = self.extra();
                native::prepare::for_create(&self.kind.gvk, object, &self.preparation(now, uid, &extra));
                if self.kind.is_definition() {
                    apimachinery::crd::prepare_create(object);
                }
                if self.kind.is_tainted_at_first() {
                    crate::admission::nodes::taint_new(object);
                }
            }
            Source::Custom(custom) => custom.prepare_create(&self.kind.gvk, object),
        }
        Ok(())
    }

    fn extra(&self) -> Value {
        serde_json::to_value(&self.context.user.extra).unwrap_or_default()
    }

    fn preparation<'a>(
        &'a self,
        now: Timestamp,
        uid: &'a str,
        extra: &'a Value,
    ) -> native::prepare::Context<'a> {
        let user = &self.context.user;
        native::prepare::Context {
            user: &user.name,
            user_uid: &user.uid,
            groups: &user.groups,
            extra: (!user.extra.is_empty()).then_some(extra),
            now,
            uid,
        }
    }

    pub(super) fn prepare_update(&self, new: &mut Value, old: &Value) -> Result<(), Status> {
        match &self.kind.source {
            Source::Native => {
                let extra = self.extra();
                let context = self.preparation(Timestamp::now(), "", &extra);
                match self.subresource {
                    "" => {
                        native::prepare::for_update(&self.kind.gvk, new, old, &context);
                        if self.kind.is_definition() {
                            apimachinery::crd::record_storage_version(new);
                        }
                    }
                    // Only callers in this process bind pods; they set the node, the labels and the condition.
                    "binding" => {}
                    "approval" => native::prepare::for_approval(new, old, &context),
                    "finalize" => {
                        let finalizers = new.pointer("/spec/finalizers").cloned();
                        *new = old.clone();
                        match finalizers.filter(|list| list.as_array().is_some_and(|list| !list.is_empty())) {
                            Some(list) => pointer::set(pointer::object_at(new, "spec"), "finalizers", list),
                            None => {
                                if let Some(spec) = new.get_mut("spec").and_then(Value::as_object_mut) {
                                    spec.remove("finalizers");
                                }
                            }
                        }
                    }
                    _ => native::prepare::for_status_update(&self.kind.gvk, new, old, &context),
                }
            }
            Source::Custom(custom) => {
                custom.prepare_update(&self.kind.gvk, self.subresource, new, old);
                if self.subresource != "status" && custom.spec_changed(&self.kind.gvk.version, old, new) {
                    bump_generation(new);
                }
            }
        }
        Ok(())
    }

    pub(super) fn validate_update(&self, new: &Value, old: &Value) -> field::Errors {
        match &self.kind.source {
            Source::Native if self.subresource == "binding" => field::Errors::new(),
            Source::Native if !self.subresource.is_empty() => {
                native::validation::status_update(&self.kind.gvk, new, old, self.subresource)
            }
            _ => {
                let warn = |warning: String| self.context.warn(warning);
                self.kind.validate_update(self.subresource, new, old, &warn)
            }
        }
    }

    /// Finds parameters of policies that the requester may not read.
    fn unreadable(&self, object: &Value, old: Option<&Value>) -> Option<field::Error> {
        param_rights::check(self.server, &self.context.user, &self.kind.gvk, object, old)
    }

    fn warnings(&self, object: &Value, old: Option<&Value>) {
        if let Source::Native = self.kind.source
            && self.subresource.is_empty()
        {
            let warnings = match old {
                None => native::prepare::warnings(&self.kind.gvk, object),
                Some(old) => native::prepare::warnings_on_update(&self.kind.gvk, object, old),
            };
            let reserved = crate::admission::policy_check::warning(&self.kind.gvk, object);
            let ignored = self.server.webhooks.warning(self.kind, object.name());
            let warnings = warnings.into_iter().chain(reserved).chain(ignored);
            warnings.for_each(|warning| self.context.warn(warning));
        }
        if self.kind.is_custom() && self.subresource.is_empty() {
            for warning in added_finalizers(object, old).iter().flat_map(|name| finalizer_warnings(name)) {
                self.context.warn(warning);
            }
        }
    }

    pub fn invalid(&self, name: &str, errors: &[field::Error]) -> Status {
        Status::invalid(self.kind.group_in_errors(), &self.kind.gvk.kind, name, errors)
    }

    pub(super) fn durability(&self) -> store::Durability {
        if self.kind.rules.buffered || self.server.relaxed {
            store::Durability::Buffered
        } else {
            self.context.terms.durability
        }
    }

    /// Waits until the unchanged object that a client gets as the result of its write is on disk: another writer may not have
    /// waited for the disk. Returns whether it still is the newest version: another server may have changed it.
    pub(super) async fn unchanged(&self, entry: &Entry) -> Result<bool, Status> {
        let store = &self.server.store;
        if store.is_on_etcd() {
            store.catch_up().await.map_err(commit_failure)?;
            let newest = store.get(&self.kind.collection, &self.key());
            return Ok(newest.is_some_and(|newest| newest.modified == entry.modified));
        }
        if self.options.dry_run || self.durability() == store::Durability::Buffered {
            return Ok(true);
        }
        store.wait_until_durable(entry.modified).await.map_err(commit_failure)?;
        Ok(true)
    }
}

/// Converts a failure of the store into the answer for the client.
pub fn commit_failure(error: store::CommitError<Head>) -> Status {
    match error {
        store::CommitError::TooLarge { .. } => Status::bare_internal("etcdserver: request is too large"),
        store::CommitError::ReadOnly { .. } => {
            Status::unavailable(format!("the store does not take writes: {error}"))
        }
        store::CommitError::Unanswered { reason } => Status::new(
            504,
            "Timeout",
            format!("the store did not answer, the write may have been made or not: {reason}"),
        ),
        store::CommitError::Closed => Status::unavailable("the server is shutting down"),
        store::CommitError::Dead { reason } => Status::unavailable(&*reason),
        other => Status::internal(other),
    }
}

/// The error for a write that names another uid, in the words of upstream's store.
pub fn precondition(kind: &Kind, namespace: &str, name: &str, wanted: &str, found: &str) -> Status {
    let key = object::join_key(namespace, name);
    let why = format!(
        "StorageError: invalid object, Code: 4, Key: /registry/{}/{key}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {wanted}, UID in object meta: {found}",
        kind.collection
    );
    Status::conflict(&kind.resource, name, &why)
}

/// Refuses an object that nests too deeply to be read again, whatever caused it: plug-ins, policies, the field ownership. An
/// object that an earlier release stored deeper may stay as it is.
pub(super) fn check_depth(new: &Value, old: Option<&Value>) -> Result<(), Status> {
    match depth::check(new) {
        Err(error) if old.is_none_or(|old| depth::depth(old) < depth::depth(new)) => {
            Err(Status::bad_request(error.to_string()))
        }
        _ => Ok(()),
    }
}

/// Returns whether an update has removed the last obstacle to a pending deletion.
fn is_finished(kind: &Kind, new: &Value, old: &Value) -> bool {
    let deleting = old.is_deleting();
    let grace = old.pointer("/metadata/deletionGracePeriodSeconds").and_then(Value::as_i64).unwrap_or(0);
    let blocked_by_spec = kind.is_namespace()
        && new.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|list| !list.is_empty());
    deleting && grace == 0 && new.finalizers().is_empty() && !blocked_by_spec
}

fn bump_generation(object: &mut Value) {
    let metadata = object.metadata_mut();
    let generation = metadata.get("generation").and_then(Value::as_i64).unwrap_or(0);
    metadata.insert("generation".to_owned(), generation.saturating_add(1).into());
}

/// Removes repeated owner references, which are tolerated with a warning.
fn dedup_owners(metadata: &mut Map<String, Value>, context: &Context, when: &str) {
    let Some(Value::Array(owners)) = metadata.get_mut("ownerReferences") else { return };
    let mut repeats = {
        let mut seen: HashSet<&Value> = HashSet::with_capacity(owners.len());
        let repeats: Vec<bool> = owners.iter().map(|owner| !seen.insert(owner)).collect();
        repeats.into_iter()
    };
    let mut repeated: Vec<String> = Vec::new();
    owners.retain(|owner| {
        let again = repeats.next() == Some(true);
        if again {
            repeated.push(owner["uid"].as_str().unwrap_or("").to_owned());
        }
        !again
    });
    if !repeated.is_empty() {
        context.warn(format!(
            ".metadata.ownerReferences contains duplicate entries{when}; API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            repeated.join(", ")
        ));
    }
}

/// Returns the finalizers that the old version does not have, sorted and each once.
fn added_finalizers(object: &Value, old: Option<&Value>) -> BTreeSet<String> {
    let known: HashSet<String> = old.map(Object::finalizers).unwrap_or_default().into_iter().collect();
    object.finalizers().into_iter().filter(|name| !known.contains(name)).collect()
}

/// Returns warnings about the name of a finalizer.
fn finalizer_warnings(name: &str) -> Vec<String> {
    const STANDARD: [&str; 3] = ["orphan", "foregroundDeletion", "kubernetes"];
    let say = |what: String| format!("metadata.finalizers: {name:?}: {what}");
    let mut warnings: Vec<String> = apimachinery::names::qualified_name(name).into_iter().map(&say).collect();
    if !name.contains('/') && !STANDARD.contains(&name) {
        let path = if name.contains('.') { " including a path (/)" } else { "" };
        warnings.push(say(format!(
            "prefer a domain-qualified finalizer name{path} to avoid accidental conflicts with other finalizer writers"
        )));
    }
    warnings
}

/// Formats a timestamp as Kubernetes does: in UTC, with whole seconds.
pub fn second(time: Timestamp) -> String {
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// Appends five characters from Kubernetes' alphabet without vowels and look-alikes.
pub fn generate_name(prefix: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    const MAX_PREFIX: usize = 58;
    let mut name = prefix.get(..prefix.floor_char_boundary(MAX_PREFIX)).unwrap_or_default().to_owned();
    for _ in 0..5 {
        name.extend(ALPHABET.get(rand::random_range(0..ALPHABET.len())).map(|letter| char::from(*letter)));
    }
    name
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, Method};
    use serde_json::json;

    use super::*;
    use crate::auth::User;
    use crate::http::{Query, RequestInfo};

    #[test]
    fn only_exact_repetitions_among_owners_are_dropped() {
        let query = || Query::parse(None);
        let info = RequestInfo::parse(&Method::GET, "/version", &query());
        let context = Context::new(Method::GET, info, query(), HeaderMap::new(), Arc::new(User::default()));
        let owner = |name: &str| json!({"apiVersion": "v1", "kind": "Pod", "name": name, "uid": "1"});
        let mut object = json!({"metadata": {"ownerReferences": [owner("p"), owner("q"), owner("p")]}});
        dedup_owners(object.metadata_mut(), &context, "");
        assert_eq!(object, json!({"metadata": {"ownerReferences": [owner("p"), owner("q")]}}));
        let warnings = context.take_warnings();
        assert!(warnings.len() == 1 && warnings[0].ends_with("UID(s) observed: 1"), "{warnings:?}");
        dedup_owners(object.metadata_mut(), &context, "");
        assert!(context.take_warnings().is_empty());
    }

    #[test]
    fn the_largest_generation_stays_the_largest() {
        let mut object = json!({"metadata": {"generation": i64::MAX}});
        bump_generation(&mut object);
        assert_eq!(object["metadata"]["generation"], json!(i64::MAX));
    }

    #[test]
    fn repeated_owners_are_dropped_however_many_there_are() {
        let query = || Query::parse(None);
        let info = RequestInfo::parse(&Method::GET, "/version", &query());
        let context = Context::new(Method::GET, info, query(), HeaderMap::new(), Arc::new(User::default()));
        let owner = |number: usize| json!({"kind": "Pod", "name": "p", "uid": number.to_string()});
        let mut owners: Vec<Value> = (0..300_000).map(owner).collect();
        owners.extend([owner(7), owner(8)]);
        let mut object = json!({"metadata": {"ownerReferences": owners}});
        // Comparing each item with each other would take hours.
        dedup_owners(object.metadata_mut(), &context, "");
        let left = object["metadata"]["ownerReferences"].as_array().expect("a list");
        assert_eq!((left.len(), &left[8]), (300_000, &owner(8)));
        let warnings = context.take_warnings();
        assert!(warnings.len() == 1 && warnings[0].ends_with("observed: 7, 8"), "{warnings:?}");
    }

    #[test]
    fn finding_25_many_finalizers_of_a_custom_object_are_compared_in_linear_time() {
        let finalizers = |names: std::ops::Range<usize>| {
            let names: Vec<String> = names.map(|number| format!("a.example.com/{number}")).collect();
            json!({"metadata": {"finalizers": names}})
        };
        // Comparing each with each other would take hours.
        let added = added_finalizers(&finalizers(0..300_002), Some(&finalizers(1..300_001)));
        assert_eq!(added.into_iter().collect::<Vec<_>>(), ["a.example.com/0", "a.example.com/300001"]);
        let twice = json!({"metadata": {"finalizers": ["b", "a", "b"]}});
        assert_eq!(added_finalizers(&twice, None).into_iter().collect::<Vec<_>>(), ["a", "b"]);
    }
}
