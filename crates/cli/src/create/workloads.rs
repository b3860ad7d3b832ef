//! Generators of deployments, jobs, cron jobs, disruption budgets and priority classes.

use anyhow::bail;
use clap::Args;
use rand::RngExt;
use serde_json::{Map, Value, json};

use super::{Creation, Made, Name, required};
use crate::select::Words;

/// Create a deployment with the specified name.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Two replicas of nginx that listen at port 80
  karmadactl create deployment web --image=nginx --replicas=2 --port=80

  # With another program
  karmadactl create deployment idle --image=busybox -- sleep 3600")]
pub struct Deployment {
    #[command(flatten)]
    pub name: Name,
    /// Image names to run; may be repeated.
    #[arg(long, value_name = "IMAGE", value_delimiter = ',')]
    pub image: Vec<String>,
    /// The containerPort that this deployment exposes.
    #[arg(long, value_name = "PORT", default_value_t = -1, allow_negative_numbers = true)]
    pub port: i32,
    /// Number of replicas to create.
    #[arg(short, long, value_name = "NUMBER", default_value_t = 1, allow_negative_numbers = true)]
    pub replicas: i32,
    /// The program and its arguments, behind two dashes.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub creation: Creation,
}

impl Deployment {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        required(&[("image", !self.image.is_empty())])?;
        let name = self.name.get("deployment")?;
        if self.image.len() > 1 && !self.command.is_empty() {
            bail!("cannot specify multiple --image options and command");
        }
        let mut containers: Vec<Value> = self
            .image
            .iter()
            .map(|image| json!({"image": image, "name": container_name(image), "resources": {}}))
            .collect();
        if let Some(first) = containers.first_mut() {
            if self.port >= 0 {
                first["ports"] = json!([{"containerPort": self.port}]);
            }
            if !self.command.is_empty() {
                first["command"] = json!(self.command);
            }
        }
        let labels = json!({"app": name});
        let object = json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "labels": labels},
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": labels},
                "strategy": {},
                "template": {"metadata": {"labels": labels}, "spec": {"containers": containers}},
            },
            "status": {},
        });
        Ok(Made { object, plural: "deployments", namespaced: true, failed: "failed to create deployment: " })
    }
}

/// The name of the image; invalid characters are replaced, and a random suffix avoids collisions.
fn container_name(image: &str) -> String {
    let last = image.rsplit('/').next().unwrap_or(image);
    let name = last.split([':', '@']).next().unwrap_or(last);
    if !name.contains(['_', '.']) {
        return name.to_owned();
    }
    const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut random = rand::rng();
    let end: String = (0..5).map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())])).collect();
    format!("{}-{end}", name.replace(['_', '.'], "-"))
}

/// The command of jobs.
fn job_pod(name: &str, image: &str, command: &[String], restart: &str) -> Value {
    let mut container = json!({"image": image, "name": name, "resources": {}});
    if !command.is_empty() {
        container["command"] = json!(command);
    }
    json!({"metadata": {}, "spec": {"containers": [container], "restartPolicy": restart}})
}

/// Create a job with the specified name.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Run a program once
  karmadactl create job now --image=busybox -- date

  # Run a cron job now
  karmadactl create job now --from=cronjob/nightly")]
pub struct Job {
    #[command(flatten)]
    pub name: Name,
    /// Image name to run.
    #[arg(long, value_name = "IMAGE", default_value = "")]
    pub image: String,
    /// The cron job to create a job from, as cronjob/NAME.
    #[arg(long, value_name = "CRONJOB", default_value = "")]
    pub from: String,
    /// The program and its arguments, behind two dashes.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub creation: Creation,
}

impl Job {
    pub(super) async fn run(&self) -> anyhow::Result<()> {
        let name = self.name.get("job")?;
        if self.image.is_empty() == self.from.is_empty() {
            bail!("either --image or --from must be specified");
        }
        if !self.command.is_empty() && !self.from.is_empty() {
            bail!("cannot specify --from and command");
        }
        let plane = self.creation.place.plane().await?;
        let mut object = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}});
        if self.from.is_empty() {
            let template = job_pod(name, &self.image, &self.command, "Never");
            object["spec"] = json!({"template": template});
            object["status"] = json!({});
        } else {
            let words = Words::parse(std::slice::from_ref(&self.from))?;
            let Some((type_, Some(source))) = words.pairs.first() else {
                bail!("--from {:?} must be written as cronjob/NAME", self.from);
            };
            let resource = plane.server.discovery().await?.resolve(type_)?;
            let from = crate::select::get(&plane.server, resource, &plane.namespace, source, None).await?;
            if resource.plural != "cronjobs" {
                bail!("from must be an existing cronjob");
            }
            of_cronjob(&mut object, &from);
        }
        let made = Made { object, plural: "jobs", namespaced: true, failed: "failed to create job: " };
        self.creation.create_on(&plane, made).await
    }
}

/// A job as its cron job would create it, but started by hand.
fn of_cronjob(job: &mut Value, cronjob: &Value) {
    let template = &cronjob["spec"]["jobTemplate"];
    let mut annotations: Map<String, Value> =
        template["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.insert("cronjob.kubernetes.io/instantiate".to_owned(), "manual".into());
    job["metadata"]["annotations"] = annotations.into();
    if let Some(labels) = template["metadata"]["labels"].as_object() {
        job["metadata"]["labels"] = labels.clone().into();
    }
    job["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "batch/v1", "kind": "CronJob", "controller": true,
        "name": cronjob["metadata"]["name"], "uid": cronjob["metadata"]["uid"],
    }]);
    job["spec"] = template["spec"].clone();
    job["status"] = json!({});
}

/// Create a cron job with the specified name.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Every night at three
  karmadactl create cronjob nightly --image=busybox --schedule='0 3 * * *' -- date")]
pub struct CronJob {
    #[command(flatten)]
    pub name: Name,
    /// Image name to run.
    #[arg(long, value_name = "IMAGE", default_value = "")]
    pub image: String,
    /// A schedule in the Cron format the job should be run with.
    #[arg(long, value_name = "SCHEDULE", default_value = "")]
    pub schedule: String,
    /// The job's restart policy: OnFailure or Never.
    #[arg(long, value_name = "POLICY", default_value = "")]
    pub restart: String,
    /// The program and its arguments, behind two dashes.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    #[command(flatten)]
    pub creation: Creation,
}

impl CronJob {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        required(&[("image", !self.image.is_empty()), ("schedule", !self.schedule.is_empty())])?;
        let name = self.name.get("cronjob")?;
        let restart = if self.restart.is_empty() { "OnFailure" } else { &self.restart };
        let template = job_pod(name, &self.image, &self.command, restart);
        let object = json!({
            "apiVersion": "batch/v1",
            "kind": "CronJob",
            "metadata": {"name": name},
            "spec": {
                "jobTemplate": {"metadata": {"name": name}, "spec": {"template": template}},
                "schedule": self.schedule,
            },
            "status": {},
        });
        Ok(Made { object, plural: "cronjobs", namespaced: true, failed: "failed to create cronjob: " })
    }
}

/// Create a pod disruption budget with the specified name, selector, and desired minimum available pods.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # One pod of web stays at all times
  karmadactl create pdb web --selector=app=web --min-available=1")]
pub struct Budget {
    #[command(flatten)]
    pub name: Name,
    /// A label selector to use for this budget, of equalities only.
    #[arg(long, value_name = "SELECTOR", default_value = "")]
    pub selector: String,
    /// The minimum number or percentage of available pods this budget requires.
    #[arg(long, value_name = "NUMBER", default_value = "")]
    pub min_available: String,
    /// The maximum number or percentage of unavailable pods this budget requires.
    #[arg(long, value_name = "NUMBER", default_value = "")]
    pub max_unavailable: String,
    #[command(flatten)]
    pub creation: Creation,
}

impl Budget {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("poddisruptionbudget")?;
        if self.selector.is_empty() {
            bail!("a selector must be specified");
        }
        let (field, text) = match (self.min_available.as_str(), self.max_unavailable.as_str()) {
            ("", "") => bail!("one of min-available or max-unavailable must be specified"),
            (text, "") => ("minAvailable", text),
            ("", text) => ("maxUnavailable", text),
            _ => bail!("min-available and max-unavailable cannot be both specified"),
        };
        let mut labels = Map::new();
        for pair in self.selector.split(',') {
            let Some((key, value)) = pair.split_once('=') else {
                bail!("--selector {pair:?} is not an equality such as app=web");
            };
            labels.insert(key.trim_end_matches('=').to_owned(), value.trim_start_matches('=').into());
        }
        let value = text.parse::<i64>().map_or_else(|_| Value::from(text), Value::from);
        let object = json!({
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {field: value, "selector": {"matchLabels": labels}},
            "status": {"currentHealthy": 0, "desiredHealthy": 0, "disruptionsAllowed": 0, "expectedPods": 0},
        });
        let failed = "failed to create poddisruptionbudgets: ";
        Ok(Made { object, plural: "poddisruptionbudgets", namespaced: true, failed })
    }
}

/// Create a priority class with the specified name, value, globalDefault and description.
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  # Pods that go first
  karmadactl create priorityclass first --value=1000 --description='goes first'")]
pub struct PriorityClass {
    #[command(flatten)]
    pub name: Name,
    /// The value of this priority class.
    #[arg(long, value_name = "NUMBER", default_value_t = 0, allow_negative_numbers = true)]
    pub value: i32,
    /// Whether this is the priority of pods without one.
    #[arg(long)]
    pub global_default: bool,
    /// When the class should be used.
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub description: String,
    /// The policy for preempting pods with lower priority.
    #[arg(long, value_name = "POLICY", default_value = "PreemptLowerPriority")]
    pub preemption_policy: String,
    #[command(flatten)]
    pub creation: Creation,
}

impl PriorityClass {
    pub(super) fn make(&self) -> anyhow::Result<Made> {
        let name = self.name.get("priorityclass")?;
        let mut object = json!({
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "preemptionPolicy": self.preemption_policy,
            "value": self.value,
        });
        if !self.description.is_empty() {
            object["description"] = self.description.clone().into();
        }
        if self.global_default {
            object["globalDefault"] = true.into();
        }
        Ok(Made {
            object,
            plural: "priorityclasses",
            namespaced: false,
            failed: "failed to create priorityclass: ",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_named_after_their_images() {
        for (image, name) in
            [("nginx", "nginx"), ("nginx:1.2", "nginx"), ("registry.example:5000/team/web@sha256:abc", "web")]
        {
            assert_eq!(container_name(image), name, "{image}");
        }
        let odd = container_name("my_app.x:1");
        assert!(odd.starts_with("my-app-x-") && odd.len() == "my-app-x-".len() + 5, "{odd}");
    }

    #[test]
    fn a_job_of_a_cron_job_is_marked() {
        let mut job = json!({"metadata": {"name": "j"}});
        let cronjob = json!({"metadata": {"name": "c", "uid": "u"}, "spec": {"jobTemplate": {
            "metadata": {"labels": {"a": "b"}}, "spec": {"template": {}}}}});
        of_cronjob(&mut job, &cronjob);
        assert_eq!(job["metadata"]["annotations"], json!({"cronjob.kubernetes.io/instantiate": "manual"}));
        assert_eq!(job["metadata"]["ownerReferences"][0]["uid"], "u");
        assert_eq!(job["metadata"]["labels"]["a"], "b");
        assert_eq!(job["spec"], json!({"template": {}}));
    }
}
