//! Named sample data of a template: previews and tests are rendered with it.

use std::collections::HashSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use sqlx::{PgConnection, types::Json};
use uuid::Uuid;

use super::{content, merge, render::SampleContact};
use crate::pipeline::{Faults, error::ApiError, types::Words};

/// Most sets of a template.
pub(super) const SETS_MAX: usize = 20;
/// Longest name of a set, in characters.
pub(crate) const SET_NAME_MAX: usize = 100;
/// Most bytes of all sets of a template, as JSON.
const BYTES_MAX: usize = 256 * 1024;

/// Sample data under a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TestDataSet {
    #[schemars(with = "Words<SET_NAME_MAX>")]
    name: String,
    /// Default: a contact of whom nothing is known.
    pub(crate) sample: Option<SampleContact>,
    /// Of transactional templates: read as `data.…`.
    pub(crate) data: Option<Map<String, Value>>,
    /// Of templates of sequences: read as `event.properties.…`.
    event_properties: Option<Map<String, Value>>,
}

/// Sample data under a name, as it was given.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct StoredTestData {
    name: String,
    /// The fields of the contact that are given.
    sample: Option<Map<String, Value>>,
    data: Option<Map<String, Value>>,
    event_properties: Option<Map<String, Value>>,
}

impl From<TestDataSet> for StoredTestData {
    fn from(set: TestDataSet) -> Self {
        let sample = set.sample.and_then(|sample| match serde_json::to_value(sample) {
            Ok(Value::Object(mut sample)) => {
                sample.retain(|_, value| !value.is_null());
                Some(sample)
            }
            _ => None,
        });
        Self { name: set.name, sample, data: set.data, event_properties: set.event_properties }
    }
}

/// A set of test data that does not fit its template.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TestDataMisfit {
    name: String,
    /// What it has and the template does not read.
    unknown: Vec<String>,
    /// What the template reads and it does not have.
    missing: Vec<String>,
}

impl TestDataSet {
    /// What templates read as `event`.
    pub(super) fn event(&self) -> Value {
        self.event_properties.as_ref().map_or(
            Value::Null,
            |properties| json!({"name": "test", "occurred_at": "2030-01-01T12:00:00Z", "properties": properties}),
        )
    }

    /// What it has and the template does not read, and the other way round. `variables` are the template's, sorted. `None` if all fits.
    fn misfit(&self, variables: &[String]) -> Option<TestDataMisfit> {
        let mut unknown = Vec::new();
        let roots = [("data", &self.data), ("event.properties", &self.event_properties)];
        for (root, values) in roots {
            for (key, value) in values.iter().flatten() {
                add_unread(format!("{root}.{key}"), value, variables, &mut unknown);
            }
        }
        let is_missing = |variable: &&String| {
            roots.iter().any(|(root, values)| {
                let rest = variable.strip_prefix(root).and_then(|rest| rest.strip_prefix('.'));
                rest.is_some_and(|rest| values.as_ref().is_none_or(|values| !has(values, rest)))
            })
        };
        let missing: Vec<String> = variables.iter().filter(is_missing).cloned().collect();
        let fits = unknown.is_empty() && missing.is_empty();
        (!fits).then(|| TestDataMisfit { name: self.name.clone(), unknown, missing })
    }
}

/// Adds what no variable reads of a value, at its outermost place.
fn add_unread(path: String, value: &Value, variables: &[String], unread: &mut Vec<String>) {
    let begins = |start: &str| {
        let at = variables.partition_point(|variable| variable.as_str() < start);
        variables.get(at).is_some_and(|variable| variable.starts_with(start))
    };
    if variables.binary_search(&path).is_ok() || begins(&format!("{path}[")) {
        return;
    }
    match value {
        _ if !begins(&format!("{path}.")) => unread.push(path),
        Value::Object(object) => {
            for (key, value) in object {
                add_unread(format!("{path}.{key}"), value, variables, unread);
            }
        }
        // `size`, `first` and `last` of a list or a text.
        _ => {}
    }
}

/// Whether there is a value where a variable reads one. Behind an index, anything may be.
fn has(values: &Map<String, Value>, variable: &str) -> bool {
    let path = variable.split('[').next().unwrap_or_default();
    let mut keys = path.split('.');
    let mut found = keys.next().and_then(|key| values.get(key));
    for key in keys {
        found = match found {
            Some(Value::Object(object)) if object.contains_key(key) => object.get(key),
            Some(value @ (Value::Array(_) | Value::String(_) | Value::Object(_)))
                if matches!(key, "size" | "first" | "last") =>
            {
                Some(value)
            }
            _ => None,
        };
    }
    found.is_some()
}

/// The sets that do not fit a template with these variables, sorted.
pub(super) fn misfits(sets: &[TestDataSet], variables: &[String]) -> Vec<TestDataMisfit> {
    sets.iter().filter_map(|set| set.misfit(variables)).collect()
}

/// Adds every fault of the sets: names, sizes, and contact fields that the tenant has not defined.
pub(super) async fn check(
    db: &mut PgConnection,
    tenant: Uuid,
    sets: &[TestDataSet],
    faults: &mut Faults,
) -> sqlx::Result<()> {
    if sets.is_empty() {
        return Ok(());
    }
    let custom = content::known_fields(db, tenant).await?.custom;
    faults.require(sets.len() <= SETS_MAX, "test_data", "too_many", &format!("may have at most {SETS_MAX} sets"));
    let bytes = serde_json::to_string(sets).map_or(0, |text| text.len());
    faults.require(bytes <= BYTES_MAX, "test_data", "too_long", &format!("may have at most {BYTES_MAX} bytes in all"));
    let mut names = HashSet::new();
    for (index, set) in sets.iter().enumerate() {
        let path = format!("test_data[{index}]");
        faults.title(&format!("{path}.name"), &set.name, SET_NAME_MAX);
        faults.require(names.insert(&set.name), &format!("{path}.name"), "duplicate", "another set has this name");
        if let Some(sample) = &set.sample {
            sample.check(&format!("{path}.sample"), faults);
            for key in sample.field_names().filter(|key| !custom.contains(*key)) {
                let path = format!("{path}.sample.fields.{}", key.chars().take(64).collect::<String>());
                faults.add(path, "unknown_field", "is no field that this tenant has defined");
            }
        }
        for (name, values) in [("data", &set.data), ("event_properties", &set.event_properties)] {
            merge::check_data(&format!("{path}.{name}"), values.as_ref(), faults);
        }
    }
    Ok(())
}

/// The sets of a template, in their order.
pub(super) async fn of_template(db: &mut PgConnection, tenant: Uuid, template: Uuid) -> sqlx::Result<Vec<TestDataSet>> {
    let sets = sqlx::query_scalar!(
        r#"select test_data as "sets: Json<Vec<TestDataSet>>" from templates where tenant_id = $1 and id = $2"#,
        tenant,
        template,
    )
    .fetch_optional(db)
    .await?;
    Ok(sets.map(|sets| sets.0).unwrap_or_default())
}

/// Stores the sets of a template in the place of those it has.
pub(super) async fn replace(
    db: &mut PgConnection,
    tenant: Uuid,
    template: Uuid,
    sets: &[TestDataSet],
) -> sqlx::Result<()> {
    sqlx::query!(
        "update templates set test_data = $3 where tenant_id = $1 and id = $2",
        tenant,
        template,
        Json(sets) as _,
    )
    .execute(db)
    .await
    .map(drop)
}

/// The set of this name that a template has. Without a template there is none.
///
/// # Errors
/// 400 at `test_data`.
pub(crate) async fn named(
    db: &mut PgConnection,
    tenant: Uuid,
    template: Option<Uuid>,
    name: &str,
) -> Result<TestDataSet, ApiError> {
    let sets = match template {
        Some(template) => of_template(db, tenant, template).await?,
        None => Vec::new(),
    };
    let found = sets.into_iter().find(|set| set.name == name);
    found.ok_or_else(|| ApiError::invalid("test_data", "unknown", "the template has no test data of this name"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(value: Value) -> TestDataSet {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn every_field_that_does_not_fit_is_listed() {
        let mut variables: Vec<String> = [
            "data.order.id",
            "data.items",
            "data.rows[0].name",
            "data.total.size",
            "event.name",
            "first_name",
            "data.a.b",
        ]
        .map(str::to_owned)
        .to_vec();
        variables.sort();
        let data = json!({
            "order": {"id": 1, "number": 2, "lines": [1]}, "items": [{"any": 1}], "rows": [{"name": "x"}], "total": "12", "ordr": 3,
        });
        let misfit = set(json!({"name": "a", "data": data})).misfit(&variables).unwrap();
        assert_eq!(misfit.unknown, ["data.order.lines", "data.order.number", "data.ordr"]);
        assert_eq!(misfit.missing, ["data.a.b"]);
        let fits =
            set(json!({"name": "b", "event_properties": {"plan": "x"}})).misfit(&["event.properties.plan".to_owned()]);
        assert!(fits.is_none());
        let empty = set(json!({"name": "c"})).misfit(&variables).unwrap();
        assert_eq!(empty.missing, ["data.a.b", "data.items", "data.order.id", "data.rows[0].name", "data.total.size"]);
    }
}
