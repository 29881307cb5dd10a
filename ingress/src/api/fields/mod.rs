//! `/v1/fields`: a tenant's own contact fields, and the check of their values.

pub(crate) mod definitions;

use schemars::JsonSchema;
use schemas::new_id;
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::definitions::FieldType;
use super::{imports::header::is_reserved_name, references};
use crate::pipeline::{
    ApiReply, Doc, Faults, NoFields, NoParameters, Patch, RequestContext, Routes, error::ApiError, page::Time, read,
    read_page, resource, tenant, types::Words, validate::WORD_PATTERN, write,
};

const LABEL_MAX_CHARS: usize = 100;
const FALLBACK_MAX_CHARS: usize = 500;
/// Contacts that a removal looks at for its answer.
const COUNTED_MAX: i64 = 10_000;
/// Fields one tenant may define. Those count that were removed and whose values are still being taken out: each has its share in a pass over
/// all contacts.
const FIELDS_MAX: i64 = 200;
/// `Retry-After` while the values of a removed field are taken out, in seconds.
const RETRY_REMOVING: u64 = 60;

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
    let count = sqlx::query_scalar!(
        r#"select (select count(*) from fields where tenant_id = $1)
                  + (select count(*) from removed_fields where tenant_id = $1) as "count!""#,
        tenant,
    );
    if count.fetch_one(ctx.db()).await? >= FIELDS_MAX {
        let detail =
            format!("a tenant may define {FIELDS_MAX} fields; a removed one counts until its values are taken out");
        return Err(ApiError::conflict("field_limit_reached").detail(detail));
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
    // Against [`definitions::hold_names`]: what is about to name it is stored before, or finds it gone.
    sqlx::query!("select pg_advisory_xact_lock(hashtextextended('field names ' || $1::uuid::text, 0))", tenant)
        .fetch_one(ctx.db())
        .await?;
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

    #[test]
    fn keys_are_words_that_contacts_do_not_use_themselves() {
        assert!(is_reserved_name("email") && is_reserved_name("firstname") && !is_reserved_name("plan"));
    }
}
