//! `/v1/fields`: a tenant's own contact fields, and the check of their values.

use std::collections::BTreeMap;

use chrono::DateTime;
use schemars::JsonSchema;
use schemas::new_id;
use segments::parse_date;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{imports::header::is_reserved_name, references};
use crate::pipeline::{
    ApiReply, Doc, Faults, NoFields, NoParameters, Patch, RequestContext, Routes, error::ApiError, page::Time, read,
    read_page, resource, tenant, types::Words, validate::WORD_PATTERN, write,
};

const LABEL_MAX_CHARS: usize = 100;
const FALLBACK_MAX_CHARS: usize = 500;
const TEXT_MAX_CHARS: usize = 2_000;
const LIST_MAX_ITEMS: usize = 100;
/// Contacts that a removal looks at for its answer.
const COUNTED_MAX: i64 = 10_000;
/// Fields one tenant may define.
const FIELDS_MAX: i64 = 200;
/// `Retry-After` while the values of a removed field are taken out, in seconds.
const RETRY_REMOVING: u64 = 60;

/// The routes.
pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/fields",
            read_page("fields:read", list),
            Doc::new("listFields", "List contact fields", "The tenant's own ones, newest first.")
                .page::<FieldView>("A page of fields"),
        )
        .post(
            "/v1/fields",
            write("fields:write", create),
            Doc::new(
                "createField",
                "Define a contact field",
                "Key and type are for good. Templates use it as `contact.fields.<key>`, imports as a column.",
            )
            .example(json!({"key": "plan", "label": "Plan", "type": "string", "fallback": "free"}))
            .answer::<FieldCreated>(201, "Defined")
            .leads_to("field_id", &["getField", "updateField", "deleteField"])
            .refuses(409, &["field_already_exists", "field_being_removed", "field_limit_reached"]),
        )
        .get(
            "/v1/fields/{id}",
            read("fields:read", show),
            Doc::new("getField", "Read a contact field", "").single::<FieldView>("The field"),
        )
        .patch(
            "/v1/fields/{id}",
            write("fields:write", change),
            Doc::new("updateField", "Change a contact field", "Label and fallback only.")
                .single::<FieldView>("The field")
                .example(json!({"label": "Plan"})),
        )
        .delete(
            "/v1/fields/{id}",
            write("fields:write", remove),
            Doc::new(
                "deleteField",
                "Remove a contact field",
                "With its values, which nobody sees from now on. They are taken out of the contacts after the answer; until then \
                 a field of the same key is refused with `field_being_removed`. Not while a segment, a template, a campaign that \
                 is not over or a sequence that is not archived uses it.",
            )
            .answer::<FieldRemoved>(200, "Removed")
            .refuses(404, &["field_not_found"])
            .refuses(409, &["field_in_use"]),
        )
}

schemas::named_enum! {
    /// What a field holds.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    pub wire enum FieldType {
        /// Text.
        String = "string",
        /// A number.
        Number = "number",
        /// True or false.
        Boolean = "boolean",
        /// `YYYY-MM-DD`
        Date = "date",
        /// RFC 3339 with a zone.
        Datetime = "datetime",
        /// Texts.
        StringList = "string_list",
    }
}

impl FieldType {
    fn from_column(text: &str) -> Self {
        Self::parse(text).unwrap_or(Self::String)
    }

    /// Whether a JSON value is one of this type; `Err` says what it must be.
    ///
    /// # Errors
    /// A description of valid values.
    pub fn check(self, value: &Value) -> Result<(), &'static str> {
        let short = |text: &str| text.chars().nth(TEXT_MAX_CHARS).is_none();
        let good = match (self, value) {
            (Self::String, Value::String(text)) => short(text),
            (Self::Number, Value::Number(_)) | (Self::Boolean, Value::Bool(_)) => true,
            (Self::Date, Value::String(text)) => parse_date(text).is_some(),
            (Self::Datetime, Value::String(text)) => DateTime::parse_from_rfc3339(text).is_ok(),
            (Self::StringList, Value::Array(items)) => {
                items.len() <= LIST_MAX_ITEMS && items.iter().all(|item| item.as_str().is_some_and(short))
            }
            _ => false,
        };
        if good { Ok(()) } else { Err(self.wanted()) }
    }

    /// Reads a cell of a CSV file.
    ///
    /// # Errors
    /// A description of valid cells.
    pub fn parse_cell(self, cell: &str) -> Result<Value, &'static str> {
        let value = match self {
            Self::String | Self::Date | Self::Datetime => Some(Value::String(cell.to_owned())),
            Self::Number => cell
                .parse::<i64>()
                .map(Value::from)
                .ok()
                .or_else(|| cell.parse::<f64>().ok().and_then(serde_json::Number::from_f64).map(Value::Number)),
            Self::Boolean => parse_boolean(cell).map(Value::Bool),
            Self::StringList => {
                let items = cell.split([';', '|']).map(str::trim).filter(|item| !item.is_empty());
                Some(items.map(|item| Value::String(item.to_owned())).collect())
            }
        };
        let value = value.ok_or(self.wanted())?;
        self.check(&value).map(|()| value)
    }

    fn wanted(self) -> &'static str {
        match self {
            Self::String => "must be a string of at most 2000 characters",
            Self::Number => "must be a number",
            Self::Boolean => "must be true or false",
            Self::Date => "must be a date as YYYY-MM-DD",
            Self::Datetime => "must be an RFC 3339 time with a zone",
            Self::StringList => "must be a list of at most 100 strings",
        }
    }
}

/// A truth value as people write it in files.
#[must_use]
pub fn parse_boolean(cell: &str) -> Option<bool> {
    match cell.to_ascii_lowercase().as_str() {
        "true" | "t" | "yes" | "y" | "1" => Some(true),
        "false" | "f" | "no" | "n" | "0" => Some(false),
        _ => None,
    }
}

/// The defined fields of a tenant, by key.
pub async fn defined(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<BTreeMap<String, FieldType>> {
    let rows = sqlx::query!("select key, type from fields where tenant_id = $1", tenant).fetch_all(db).await?;
    Ok(rows.into_iter().map(|row| (row.key, FieldType::from_column(&row.r#type))).collect())
}

/// The defined fields of a tenant, by key, for a transaction that stores values of them: the sweep that takes out the values of a removed
/// field waits for those that still know it.
pub async fn defined_for_write(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<BTreeMap<String, FieldType>> {
    sqlx::query!("select hold_fields($1)", tenant).fetch_one(&mut *db).await?;
    defined(db, tenant).await
}

/// The defined fields of a tenant, by key, for a transaction that stores what names them.
pub(crate) async fn defined_for_naming(
    db: &mut PgConnection,
    tenant: Uuid,
) -> sqlx::Result<BTreeMap<String, FieldType>> {
    hold_names(&mut *db, tenant).await?;
    defined(db, tenant).await
}

/// Holds the names of the tenant's fields until the transaction ends, which stores what names them: a template, a rule, a step. A removal
/// waits for it and finds what it stored, or is over before. To be called before the statement that reads the definitions, and before a
/// row is locked that others hold while they wait for this.
pub(crate) async fn hold_names(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!("select pg_advisory_xact_lock_shared(hashtextextended('field names ' || $1::uuid::text, 0))", tenant)
        .fetch_one(db)
        .await
        .map(drop)
}

/// Waits for the transactions that hold the names, and keeps others from it until this one ends.
async fn lock_names(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<()> {
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('field names ' || $1::uuid::text, 0))", tenant)
        .fetch_one(db)
        .await
        .map(drop)
}

/// A field of contacts that the tenant defined.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Field")]
struct FieldView {
    field_id: Uuid,
    key: String,
    label: String,
    #[serde(rename = "type")]
    #[schemars(with = "FieldType")]
    kind: String,
    fallback: Option<String>,
    created_at: Time,
    updated_at: Time,
}

resource!(FieldView, "field", "fields", field_id);

async fn list(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let fields = sqlx::query_as!(
        FieldView,
        "select id as field_id, key, label, type as kind, fallback, created_at, updated_at from fields
         where tenant_id = $1 and ($2::timestamptz is null or (created_at, id) < ($2, $3))
         order by created_at desc, id desc limit $4",
        tenant,
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, fields)
}

async fn find(ctx: &mut RequestContext) -> Result<FieldView, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("field")?);
    sqlx::query_as!(
        FieldView,
        "select id as field_id, key, label, type as kind, fallback, created_at, updated_at from fields
         where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .fetch_optional(ctx.db())
    .await?
    .ok_or_else(|| ApiError::not_found("field"))
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    ApiReply::single(find(ctx).await?)
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateField {
    /// Not a name that contacts have already.
    #[schemars(regex(pattern = WORD_PATTERN))]
    key: String,
    #[schemars(with = "Words<LABEL_MAX_CHARS>")]
    label: String,
    #[serde(rename = "type")]
    kind: FieldType,
    /// What templates show where a contact has no value.
    #[schemars(length(max = FALLBACK_MAX_CHARS))]
    fallback: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct FieldCreated {
    field_id: Uuid,
    key: String,
    created_at: Time,
}

async fn create(ctx: &mut RequestContext, body: CreateField) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    faults.key_word("key", &body.key);
    faults.require(!is_reserved_name(&body.key), "key", "reserved", "is a name that contacts have already");
    faults.title("label", &body.label, LABEL_MAX_CHARS);
    faults.optional("fallback", body.fallback.as_deref(), FALLBACK_MAX_CHARS);
    faults.finish()?;
    let (tenant, id) = (ctx.tenant, new_id());
    // The tenant's row is locked, so that fields are counted and made one after the other.
    tenant::lock_row(ctx.db(), tenant).await?;
    let count = sqlx::query_scalar!(r#"select count(*) as "count!" from fields where tenant_id = $1"#, tenant);
    if count.fetch_one(ctx.db()).await? >= FIELDS_MAX {
        return Err(
            ApiError::conflict("field_limit_reached").detail(format!("a tenant may define {FIELDS_MAX} fields"))
        );
    }
    let created_at = sqlx::query_scalar!(
        "insert into fields (tenant_id, id, key, label, type, fallback) values ($1, $2, $3, $4, $5, $6)
         on conflict (tenant_id, key) do nothing returning created_at",
        tenant,
        id,
        body.key,
        body.label.trim(),
        body.kind.as_str(),
        body.fallback,
    )
    .fetch_optional(ctx.db())
    .await?
    .ok_or_else(|| ApiError::conflict("field_already_exists"))?;
    // After the insert, which has waited for a removal of the key at this very moment.
    let being_removed = sqlx::query_scalar!(
        r#"select exists (select from removed_fields where tenant_id = $1 and key = $2) as "exists!""#,
        tenant,
        body.key,
    );
    if being_removed.fetch_one(ctx.db()).await? {
        return Err(ApiError::conflict("field_being_removed").retry_after(RETRY_REMOVING).detail(
            "the values of a removed field with this key are still being taken out; try again in a few minutes",
        ));
    }
    ctx.audit("field.created", &id.to_string(), json!({"key": body.key})).await?;
    ApiReply::created(&FieldCreated { field_id: id, key: body.key, created_at: created_at.into() })
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ChangeField {
    #[schemars(with = "Option<Words<LABEL_MAX_CHARS>>")]
    label: Option<String>,
    #[schemars(length(max = FALLBACK_MAX_CHARS))]
    fallback: Patch<String>,
}

/// Label and fallback only: stored values and templates depend on key and type.
async fn change(ctx: &mut RequestContext, body: ChangeField) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    if let Some(label) = &body.label {
        faults.title("label", label, LABEL_MAX_CHARS);
    }
    faults.optional("fallback", body.fallback.value().map(String::as_str), FALLBACK_MAX_CHARS);
    faults.finish()?;
    let (tenant, id) = (ctx.tenant, ctx.id("field")?);
    let changed = sqlx::query!(
        "update fields set label = coalesce($3, label), fallback = case when $4 then $5 else fallback end, updated_at = now()
         where tenant_id = $1 and id = $2",
        tenant,
        id,
        body.label.as_deref().map(str::trim),
        body.fallback.is_given(),
        body.fallback.value(),
    )
    .execute(ctx.db())
    .await?;
    if changed.rows_affected() == 0 {
        return Err(ApiError::not_found("field"));
    }
    let fields = [("label", body.label.is_some()), ("fallback", body.fallback.is_given())];
    ctx.audit_changed("field.changed", &id.to_string(), fields).await?;
    ApiReply::single(find(ctx).await?)
}

#[derive(Debug, Serialize, JsonSchema)]
struct FieldRemoved {
    field_id: Uuid,
    #[schemars(extend("const" = "deleted"))]
    status: &'static str,
    /// How many contacts had a value, of the tenant's 10,000 oldest.
    contacts: u64,
}

/// Removes a field. A sweep of the audience stage takes out its values: a field of the same key and another type must not find them.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("field")?);
    // What is about to name it is stored before, or finds it gone.
    lock_names(ctx.db(), tenant).await?;
    let field = find(ctx).await?;
    let references = references::to_field(ctx.db(), tenant, &field.key).await?;
    references::refuse("field", references, "change them, or wait until they are over")?;
    sqlx::query!(
        "with removed as (delete from fields where tenant_id = $1 and id = $2 returning tenant_id, id, key)
         insert into removed_fields (tenant_id, id, key) select tenant_id, id, key from removed",
        tenant,
        id,
    )
    .execute(ctx.db())
    .await?;
    let contacts = sqlx::query_scalar!(
        r#"select count(*) filter (where c.fields ? $2) as "count!"
           from (select fields from contacts where tenant_id = $1 order by id limit $3) c"#,
        tenant,
        field.key,
        COUNTED_MAX,
    );
    let contacts = contacts.fetch_one(ctx.db()).await?.unsigned_abs();
    ctx.audit("field.removed", &id.to_string(), json!({"key": field.key, "contacts": contacts})).await?;
    ApiReply::ok(&FieldRemoved { field_id: id, status: "deleted", contacts })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[rstest]
    #[case(FieldType::String, json!("x"), true)]
    #[case(FieldType::String, json!(1), false)]
    #[case(FieldType::Number, json!(1.5), true)]
    #[case(FieldType::Number, json!("1.5"), false)]
    #[case(FieldType::Boolean, json!(false), true)]
    #[case(FieldType::Date, json!("2026-02-28"), true)]
    #[case(FieldType::Date, json!("2026-02-30"), false)]
    #[case(FieldType::Date, json!("2026-2-3"), false)]
    #[case(FieldType::Date, json!("2026- 1- 2"), false)]
    #[case(FieldType::Date, json!("+2026-1-02"), false)]
    #[case(FieldType::Date, json!("-999-01-01"), false)]
    #[case(FieldType::Datetime, json!("2026-02-28T10:00:00+01:00"), true)]
    #[case(FieldType::Datetime, json!("2026-02-28T10:00:00"), false)]
    #[case(FieldType::StringList, json!(["a", "b"]), true)]
    #[case(FieldType::StringList, json!(["a", 1]), false)]
    fn a_value_has_its_fields_type(#[case] kind: FieldType, #[case] value: Value, #[case] good: bool) {
        assert_eq!(kind.check(&value).is_ok(), good);
    }

    #[rstest]
    #[case(FieldType::Number, "12", Some(json!(12)))]
    #[case(FieldType::Number, "1.5", Some(json!(1.5)))]
    #[case(FieldType::Number, "NaN", None)]
    #[case(FieldType::Boolean, "Yes", Some(json!(true)))]
    #[case(FieldType::Boolean, "perhaps", None)]
    #[case(FieldType::StringList, "a; b|c;", Some(json!(["a", "b", "c"])))]
    #[case(FieldType::Date, "28.02.2026", None)]
    fn a_cell_becomes_a_value_of_its_fields_type(
        #[case] kind: FieldType,
        #[case] cell: &str,
        #[case] value: Option<Value>,
    ) {
        assert_eq!(kind.parse_cell(cell).ok(), value);
    }

    #[test]
    fn keys_are_words_that_contacts_do_not_use_themselves() {
        assert!(is_reserved_name("email") && is_reserved_name("firstname") && !is_reserved_name("plan"));
    }
}
