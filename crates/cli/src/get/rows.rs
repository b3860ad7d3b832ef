//! Merges tables of several servers: the server's columns, with the cluster after the name and the adoption at the end.

use anyhow::bail;
use apimachinery::jsonpath::Path;
use serde_json::Value;

use super::{adoption, order};
use crate::print::table::cell;
use crate::server::Server;

/// The rows of one type.
#[derive(Debug, Default)]
pub(super) struct Rows {
    /// Names of columns and whether they are only for `-o wide`; those of the first server.
    columns: Vec<(String, bool)>,
    rows: Vec<Row>,
    watching: bool,
}

#[derive(Debug)]
struct Row {
    cluster: String,
    cells: Vec<String>,
    object: Value,
}

/// The options of a table.
pub(super) struct Shape<'a> {
    pub(super) wide: bool,
    pub(super) namespaces: bool,
    /// The prefix of names, before the slash.
    pub(super) kind: Option<String>,
    pub(super) pods: bool,
    pub(super) show_labels: bool,
    pub(super) label_columns: &'a [String],
    pub(super) headers: bool,
    /// The event of a watch.
    pub(super) event: Option<&'a str>,
}

impl Rows {
    pub(super) fn watching() -> Self {
        Self { watching: true, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn clear(&mut self) {
        self.rows.clear();
    }

    /// Adds a server's table. An object that is not a table becomes a row with its name.
    pub(super) fn add(&mut self, table: &Value, server: &Server) -> anyhow::Result<()> {
        self.add_as(table, &server.name)
    }

    pub(super) fn add_as(&mut self, table: &Value, cluster: &str) -> anyhow::Result<()> {
        if table["kind"] != "Table" {
            bail!("{cluster}: the server printed no table");
        }
        let columns: Vec<(String, bool)> = table["columnDefinitions"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|column| {
                let wide = column["priority"].as_i64().unwrap_or(0) > 0;
                (column["name"].as_str().unwrap_or("").to_uppercase(), wide)
            })
            .collect();
        if self.columns.is_empty() {
            self.columns = columns.clone();
        }
        for row in table["rows"].as_array().into_iter().flatten() {
            let cells: Vec<String> = row["cells"].as_array().into_iter().flatten().map(cell).collect();
            // Another version of a server may have other columns: cells are placed by the column's name.
            let cells = if columns.is_empty() || columns == self.columns {
                cells
            } else {
                let place = |name: &str| columns.iter().position(|(known, _)| known == name);
                let at = |(name, _): &(String, bool)| place(name).and_then(|i| cells.get(i).cloned());
                self.columns.iter().map(|column| at(column).unwrap_or_default()).collect()
            };
            self.rows.push(Row { cluster: cluster.to_owned(), cells, object: row["object"].clone() });
        }
        Ok(())
    }

    pub(super) fn sort(&mut self, path: &Path) -> anyhow::Result<()> {
        if !self.rows.is_empty() && self.rows.iter().all(|row| path.first(&row.object).is_none()) {
            bail!("couldn't find any field with the path of --sort-by in the list of objects");
        }
        self.rows.sort_by(|one, other| order(path.first(&one.object), path.first(&other.object)));
        Ok(())
    }

    /// Returns the rows with their header.
    pub(super) fn lay_out(&self, shape: &Shape<'_>) -> Vec<Vec<String>> {
        let adoption_shown = shape.wide || !shape.pods;
        let mut rows = Vec::new();
        if shape.headers {
            let mut header = Vec::new();
            header.extend(shape.event.map(|_| "EVENT".to_owned()));
            if shape.namespaces {
                header.push("NAMESPACE".to_owned());
            }
            for (i, (name, wide)) in self.columns.iter().enumerate() {
                if !wide || shape.wide {
                    header.push(name.clone());
                }
                if i == 0 {
                    header.push("CLUSTER".to_owned());
                }
            }
            if adoption_shown {
                header.push("ADOPTION".to_owned());
            }
            for label in shape.label_columns {
                header.push(label.rsplit('/').next().unwrap_or(label).to_uppercase());
            }
            if shape.show_labels {
                header.push("LABELS".to_owned());
            }
            rows.push(header);
        }
        for row in &self.rows {
            let metadata = &row.object["metadata"];
            let mut cells = Vec::new();
            cells.extend(shape.event.map(str::to_owned));
            if shape.namespaces {
                cells.push(metadata["namespace"].as_str().unwrap_or("").to_owned());
            }
            for (i, (_, wide)) in self.columns.iter().enumerate() {
                let text = row.cells.get(i).cloned().unwrap_or_default();
                if !wide || shape.wide {
                    cells.push(match (&shape.kind, i) {
                        (Some(kind), 0) => format!("{kind}/{text}"),
                        _ => text,
                    });
                }
                if i == 0 {
                    cells.push(row.cluster.clone());
                }
            }
            if adoption_shown {
                cells.push(adoption(&row.cluster, &row.object, self.watching).to_owned());
            }
            for label in shape.label_columns {
                cells.push(metadata["labels"][label.as_str()].as_str().unwrap_or("").to_owned());
            }
            if shape.show_labels {
                cells.push(labels(&metadata["labels"]));
            }
            rows.push(cells);
        }
        rows
    }
}

/// `a=1,b=2`
fn labels(labels: &Value) -> String {
    let mut pairs: Vec<String> = labels
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or("")))
        .collect();
    pairs.sort();
    if pairs.is_empty() { "<none>".to_owned() } else { pairs.join(",") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::print::table::align;

    fn table(name: &str, labels: Value) -> Value {
        json!({"kind": "Table", "columnDefinitions": [
            {"name": "Name", "priority": 0}, {"name": "Ready", "priority": 0}, {"name": "Images", "priority": 1}],
            "rows": [{"cells": [name, 3, "nginx"], "object": {"metadata": {"name": name, "namespace": "ns", "labels": labels}}}]})
    }

    fn shape(wide: bool) -> Shape<'static> {
        Shape {
            wide,
            namespaces: false,
            kind: None,
            pods: false,
            show_labels: false,
            label_columns: &[],
            headers: true,
            event: None,
        }
    }

    #[test]
    fn the_cluster_stands_behind_the_name_and_the_adoption_at_the_end() {
        let mut rows = Rows::default();
        rows.add_as(&table("a", json!({})), "Karmada").expect("a table");
        rows.add_as(&table("b", json!({"karmada.io/managed": "true"})), "m1").expect("a table");
        let text = align(&rows.lay_out(&shape(false)));
        assert_eq!(
            text,
            "NAME   CLUSTER   READY   ADOPTION\na      Karmada   3       -\nb      m1        3       Y\n"
        );
        let text = align(&rows.lay_out(&shape(true)));
        assert!(text.starts_with("NAME   CLUSTER   READY   IMAGES   ADOPTION\n"), "{text}");
        let full = Shape {
            namespaces: true,
            kind: Some("pod".to_owned()),
            pods: true,
            show_labels: true,
            label_columns: &["x.io/managed".to_owned()],
            ..shape(false)
        };
        let text = align(&rows.lay_out(&full));
        assert!(
            text.starts_with(
                "NAMESPACE   NAME    CLUSTER   READY   MANAGED   LABELS\nns          pod/a   Karmada   3"
            ),
            "{text}"
        );
        assert!(text.contains("<none>\n") && text.contains("karmada.io/managed=true\n"), "{text}");
    }

    #[test]
    fn columns_of_another_server_go_where_their_names_are() {
        let mut rows = Rows::default();
        rows.add_as(&table("a", json!({})), "m1").expect("a table");
        let other = json!({"kind": "Table", "columnDefinitions": [{"name": "Ready"}, {"name": "Name"}],
            "rows": [{"cells": [1, "b"], "object": {}}]});
        rows.add_as(&other, "m2").expect("a table");
        assert_eq!(align(&rows.lay_out(&shape(false))).lines().nth(2), Some("b      m2        1       N"));
    }

    #[test]
    fn rows_are_sorted_by_a_path() {
        let mut rows = Rows::default();
        for name in ["b", "a"] {
            rows.add_as(&table(name, json!({})), "m1").expect("a table");
        }
        rows.sort(&Path::parse("{.metadata.name}").expect("a path")).expect("sorted");
        assert_eq!(rows.rows[0].cells[0], "a");
        assert!(rows.sort(&Path::parse(".nope").expect("a path")).is_err());
    }
}
