//! `/v1/audiences`: static lists and tags, and their members. A list with a public name is a topic: its members see it on their
//! preferences page, and a contact that leaves it there is not added again by others.

pub(crate) mod held;

use schemars::JsonSchema;
use schemas::{new_id, parse_id};
use serde::{Deserialize, Serialize};
use serde_json::json;
use uuid::Uuid;

use self::held::{AudienceKind, canonical_name};
use super::{
    contacts::{NamedContact, named},
    limits, references, segments,
};
use crate::pipeline::{
    ApiReply, Doc, Faults, NoFields, NoParameters, Patch, RequestContext, Routes,
    error::ApiError,
    page::Time,
    read, read_page, resource,
    types::{Email, Words},
    validate::AUDIENCE_NAME_MAX,
    write,
};

const DESCRIPTION_MAX_CHARS: usize = 1_000;
const MEMBERS_MAX: usize = 1_000;

pub(crate) fn routes() -> Routes {
    Routes::new()
        .get(
            "/v1/audiences",
            read_page("audiences:read", list),
            Doc::new(
                "listAudiences",
                "List lists and tags",
                "Newest first. The id of a list is what campaigns take as `list_id`, of a tag as one of `tag_ids`.",
            )
            .page::<AudienceView>("A page of audiences"),
        )
        .post(
            "/v1/audiences",
            write("audiences:write", create),
            Doc::new("createAudience", "Create a list or tag", "Names are unique among lists and among tags.")
                .example(json!({"kind": "list", "name": "Friends", "public_name": "News for friends"}))
                .answer::<AudienceCreated<'_>>(201, "Created")
                .leads_to("audience_id", &["getAudience", "changeAudience", "changeAudienceMembers", "deleteAudience"])
                .refuses(409, &["audience_already_exists", "list_limit_reached", "tag_limit_reached"]),
        )
        .get(
            "/v1/audiences/{id}",
            read("audiences:read", show),
            Doc::new("getAudience", "Read a list or tag", "").single::<AudienceView>("The audience"),
        )
        .patch(
            "/v1/audiences/{id}",
            write("audiences:write", change),
            Doc::new(
                "changeAudience",
                "Rename a list or tag, or make a list a topic",
                "What is left out stays. Without its public name (`null`) a topic is a plain list again and loses \
                 its description.",
            )
            .single::<AudienceView>("The audience")
            .example(json!({"public_name": "News for friends"}))
            .refuses(409, &["audience_already_exists"]),
        )
        .delete(
            "/v1/audiences/{id}",
            write("audiences:write", remove),
            Doc::new(
                "deleteAudience",
                "Delete a list or tag",
                "Its name is free again, and no contact is a member of it any more. Not while a campaign that is not \
                 over, a segment or a sequence that is not archived names it. Campaigns of the past keep its id.",
            )
            .answer::<AudienceDeleted>(200, "Deleted")
            .refuses(404, &["audience_not_found"])
            .refuses(409, &["audience_in_use"]),
        )
        .post(
            "/v1/audiences/{id}/members",
            write("audiences:write", change_members),
            Doc::new(
                "changeAudienceMembers",
                "Add and remove members",
                "At most 1000 contacts in `add` and `remove` together. Those that are not known are answered in \
                 `not_found`; the rest is done.",
            )
            .example(json!({"add": ["ann@example.com"]}))
            .answer::<MembersChanged>(200, "Done")
            .refuses(404, &["audience_not_found"]),
        )
}

/// A list or a tag of contacts.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Audience")]
struct AudienceView {
    audience_id: Uuid,
    #[schemars(with = "AudienceKind")]
    kind: String,
    name: String,
    description: Option<String>,
    /// What its members see on their preferences page; a list with one is a topic.
    public_name: Option<String>,
    public_description: Option<String>,
    #[schemars(range(min = 0))]
    member_count: i64,
    created_at: Time,
    updated_at: Time,
}

resource!(AudienceView, "audience", "audiences", audience_id);

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ListAudiences {
    kind: Option<AudienceKind>,
}

async fn list(ctx: &mut RequestContext, query: ListAudiences) -> Result<ApiReply, ApiError> {
    let (tenant, page) = (ctx.tenant, ctx.page);
    let audiences = sqlx::query_as!(
        AudienceView,
        r#"select id as audience_id, kind, name, description, public_name, public_description, created_at, updated_at,
                  audience_member_count($1, a.id) as "member_count!"
           from audiences a
           where tenant_id = $1 and deleted_at is null and ($2::text is null or kind = $2)
             and ($3::timestamptz is null or (created_at, id) < ($3, $4))
           order by created_at desc, id desc limit $5"#,
        tenant,
        query.kind.map(AudienceKind::as_str),
        page.before,
        page.before_id,
        page.fetch(),
    )
    .fetch_all(ctx.db())
    .await?;
    ApiReply::page(page, audiences)
}

async fn show(ctx: &mut RequestContext, _: NoParameters) -> Result<ApiReply, ApiError> {
    ApiReply::single(find(ctx).await?)
}

async fn find(ctx: &mut RequestContext) -> Result<AudienceView, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("audience")?);
    sqlx::query_as!(
        AudienceView,
        r#"select id as audience_id, kind, name, description, public_name, public_description, created_at, updated_at,
                  audience_member_count($1, a.id) as "member_count!"
           from audiences a where tenant_id = $1 and id = $2 and deleted_at is null"#,
        tenant,
        id,
    )
    .fetch_optional(ctx.db())
    .await?
    .ok_or_else(|| ApiError::not_found("audience"))
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct CreateAudience {
    kind: AudienceKind,
    /// Must not look like an id.
    #[schemars(with = "Words<AUDIENCE_NAME_MAX>")]
    name: String,
    #[schemars(length(max = DESCRIPTION_MAX_CHARS))]
    description: Option<String>,
    /// Of a list only: makes it a topic on preferences pages.
    #[schemars(with = "Option<Words<AUDIENCE_NAME_MAX>>")]
    public_name: Option<String>,
    /// Only with a public name.
    #[schemars(length(max = DESCRIPTION_MAX_CHARS))]
    public_description: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
struct AudienceCreated<'a> {
    audience_id: Uuid,
    kind: AudienceKind,
    name: &'a str,
}

/// Checks what is said of a list or tag. Only a list is a topic, which people see, and only what has a public name is described to them.
fn check(
    is_list: bool,
    name: &str,
    description: Option<&str>,
    public_name: Option<&str>,
    public_description: Option<&str>,
) -> Result<(), ApiError> {
    let mut faults = Faults::default();
    faults.title("name", name, AUDIENCE_NAME_MAX);
    faults.require(parse_id(name.trim()).is_err(), "name", "invalid", "must not look like an id");
    faults.optional("description", description, DESCRIPTION_MAX_CHARS);
    if let Some(name) = public_name {
        faults.title("public_name", name, AUDIENCE_NAME_MAX);
        faults.require(is_list, "public_name", "invalid", "only a list may have a public name");
    }
    faults.optional("public_description", public_description, DESCRIPTION_MAX_CHARS);
    let good = public_description.is_none() || public_name.is_some();
    let detail = "only a list with a public name may have a public description";
    faults.require(good, "public_description", "invalid", detail);
    faults.finish()
}

async fn create(ctx: &mut RequestContext, body: CreateAudience) -> Result<ApiReply, ApiError> {
    let (public_name, public_description) = (body.public_name.as_deref(), body.public_description.as_deref());
    let is_list = body.kind == AudienceKind::List;
    check(is_list, &body.name, body.description.as_deref(), public_name, public_description)?;
    let (tenant, id, name) = (ctx.tenant, new_id(), canonical_name(&body.name));
    let created = sqlx::query!(
        "insert into audiences (tenant_id, id, kind, name, description, public_name, public_description)
         values ($1, $2, $3, $4, $5, $6, $7)
         on conflict (tenant_id, kind, name) where deleted_at is null do nothing",
        tenant,
        id,
        body.kind.as_str(),
        name,
        body.description,
        public_name.map(str::trim),
        public_description,
    )
    .execute(ctx.db())
    .await?;
    if created.rows_affected() == 0 {
        return Err(already_exists());
    }
    limits::of_audiences(body.kind).check(ctx.db(), tenant).await?;
    ctx.audit("audience.created", &id.to_string(), json!({"kind": body.kind.as_str()})).await?;
    ApiReply::created(&AudienceCreated { audience_id: id, kind: body.kind, name: &name })
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct ChangeAudience {
    #[schemars(with = "Option<Words<AUDIENCE_NAME_MAX>>")]
    name: Option<String>,
    #[schemars(length(max = DESCRIPTION_MAX_CHARS))]
    description: Patch<String>,
    #[schemars(with = "Option<Words<AUDIENCE_NAME_MAX>>")]
    public_name: Patch<String>,
    #[schemars(length(max = DESCRIPTION_MAX_CHARS))]
    public_description: Patch<String>,
}

/// Changes names and descriptions. A topic without its public name is a plain list again; contacts that left it stay away.
async fn change(ctx: &mut RequestContext, body: ChangeAudience) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("audience")?);
    // Of two changes at once, the second begins with what the first wrote.
    sqlx::query!("select id from audiences where tenant_id = $1 and id = $2 for no key update", tenant, id)
        .fetch_optional(ctx.db())
        .await?;
    let before = find(ctx).await?;
    let text = |patch: &Patch<String>, before: &Option<String>| patch.clone().applied_to(before.clone());
    let name = body.name.unwrap_or_else(|| before.name.clone());
    let description = text(&body.description, &before.description);
    let public_name = text(&body.public_name, &before.public_name);
    let public_description = text(&body.public_description, &before.public_description);
    // Without a public name there is nothing to describe.
    let public_description =
        public_description.filter(|_| public_name.is_some() || body.public_description.value().is_some());
    let is_list = before.kind == AudienceKind::List.as_str();
    check(is_list, &name, description.as_deref(), public_name.as_deref(), public_description.as_deref())?;
    let name = canonical_name(&name);
    let changed = sqlx::query!(
        "update audiences a
         set name = $3, description = $4, public_name = $5, public_description = $6, was_topic = was_topic or public_name is not null,
             updated_at = now()
         where tenant_id = $1 and id = $2
           and not exists (select from audiences o
                           where o.tenant_id = $1 and o.kind = a.kind and o.name = $3 and o.id <> $2 and o.deleted_at is null)",
        tenant,
        id,
        name,
        description,
        public_name.as_deref().map(str::trim),
        public_description,
    )
    .execute(ctx.db())
    .await
    .map_err(|error| match error.as_database_error().is_some_and(sqlx::error::DatabaseError::is_unique_violation) {
        true => already_exists(),
        false => error.into(),
    })?;
    if changed.rows_affected() == 0 {
        return Err(already_exists());
    }
    let fields = [
        ("name", name != before.name),
        ("description", description != before.description),
        ("public_name", public_name.as_deref().map(str::trim) != before.public_name.as_deref()),
        ("public_description", public_description != before.public_description),
    ];
    ctx.audit_changed("audience.changed", &id.to_string(), fields).await?;
    ApiReply::single(find(ctx).await?)
}

#[derive(Debug, Serialize, JsonSchema)]
struct AudienceDeleted {
    audience_id: Uuid,
    #[schemars(extend("const" = "deleted"))]
    status: &'static str,
    /// How many members it had.
    #[schemars(range(min = 0))]
    members: i64,
}

/// Takes a list or tag away. The row stays: campaigns of the past name it, and who left a topic gets no mail of theirs that is tried again.
/// Its members are counted, and deleted by retention: there may be millions.
async fn remove(ctx: &mut RequestContext, _: NoFields) -> Result<ApiReply, ApiError> {
    let (tenant, id) = (ctx.tenant, ctx.id("audience")?);
    // Locked for its removal: a writer that is about to name it comes before, or finds it gone.
    segments::lock_all(ctx.db(), tenant).await?;
    let kind = sqlx::query_scalar!(
        "select kind from audiences where tenant_id = $1 and id = $2 and deleted_at is null for update",
        tenant,
        id,
    );
    let kind = kind.fetch_optional(ctx.db()).await?.ok_or_else(|| ApiError::not_found("audience"))?;
    let references = references::to_audience(ctx.db(), tenant, id).await?;
    references::refuse("audience", references, "change them, or wait until they are over")?;
    let members = sqlx::query_scalar!(r#"select audience_member_count($1, $2) as "members!""#, tenant, id)
        .fetch_one(ctx.db())
        .await?;
    sqlx::query!(
        "update audiences set deleted_at = now(), updated_at = now() where tenant_id = $1 and id = $2",
        tenant,
        id,
    )
    .execute(ctx.db())
    .await?;
    ctx.audit("audience.removed", &id.to_string(), json!({"kind": kind, "members": members})).await?;
    ApiReply::ok(&AudienceDeleted { audience_id: id, status: "deleted", members })
}

fn already_exists() -> ApiError {
    ApiError::conflict("audience_already_exists").detail("a list or tag of this name exists")
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ChangeMembers {
    /// Contact ids or addresses.
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<Vec<ContactName>>", length(max = MEMBERS_MAX))]
    add: Vec<String>,
    /// Contact ids or addresses.
    #[serde(default, deserialize_with = "crate::pipeline::or_default")]
    #[schemars(with = "Option<Vec<ContactName>>", length(max = MEMBERS_MAX))]
    remove: Vec<String>,
}

/// How a body names a contact.
#[derive(JsonSchema)]
#[schemars(untagged, inline)]
#[expect(dead_code, reason = "only described")]
enum ContactName {
    Id(Uuid),
    Email(Email),
}

#[derive(Debug, Serialize, JsonSchema)]
struct MembersChanged {
    audience_id: Uuid,
    added: u64,
    removed: u64,
    /// Of the contacts to add: those that left this topic themselves and are not added again.
    #[schemars(range(min = 0))]
    departed: i64,
    /// Ids and addresses of no contact.
    not_found: Vec<String>,
}

/// Adds and removes contacts, named by id or address. Unknown ones are answered, not refused: the rest is done.
async fn change_members(ctx: &mut RequestContext, body: ChangeMembers) -> Result<ApiReply, ApiError> {
    let mut faults = Faults::default();
    let fits = body.add.len() + body.remove.len() <= MEMBERS_MAX;
    let detail = format!("add and remove together may name at most {MEMBERS_MAX} contacts");
    faults.require(fits, "add", "too_many", &detail);
    let add = read_names("add", &body.add, &mut faults);
    let remove = read_names("remove", &body.remove, &mut faults);
    faults.finish()?;
    let (tenant, id) = (ctx.tenant, ctx.id("audience")?);
    let known = sqlx::query_scalar!(
        "select id from audiences where tenant_id = $1 and id = $2 and deleted_at is null for key share",
        tenant,
        id
    );
    known.fetch_optional(ctx.db()).await?.ok_or_else(|| ApiError::not_found("audience"))?;

    let names: Vec<&NamedContact> = add.iter().chain(&remove).collect();
    // Held: the memberships of a contact that is being merged move to the one that is left.
    let contacts = named::hold(ctx.db(), tenant, &names).await?;
    let ids = |names: &[NamedContact]| -> Vec<Uuid> { names.iter().filter_map(|name| contacts.id(name)).collect() };
    let (joining, leaving) = (ids(&add), ids(&remove));
    let removed = sqlx::query!(
        "delete from audience_members where tenant_id = $1 and audience_id = $2 and contact_id = any ($3)",
        tenant,
        id,
        &leaving,
    )
    .execute(ctx.db())
    .await?
    .rows_affected();
    let added = sqlx::query!(
        "insert into audience_members (tenant_id, audience_id, contact_id)
         select $1, $2, w.contact_id from unnest($3::uuid[]) as w (contact_id)
         where not exists (select from topic_opt_outs d
                           where d.tenant_id = $1 and d.contact_id = w.contact_id and d.audience_id = $2)
         order by w.contact_id
         on conflict do nothing",
        tenant,
        id,
        &joining,
    )
    .execute(ctx.db())
    .await?
    .rows_affected();
    let departed = sqlx::query_scalar!(
        r#"select count(*) as "departed!" from topic_opt_outs
           where tenant_id = $1 and audience_id = $2 and contact_id = any ($3)"#,
        tenant,
        id,
        &joining,
    )
    .fetch_one(ctx.db())
    .await?;
    if added + removed > 0 {
        ctx.audit("audience.members_changed", &id.to_string(), json!({"added": added, "removed": removed})).await?;
    }
    let unknown = names.into_iter().filter(|name| contacts.id(name).is_none());
    let not_found = unknown.map(NamedContact::to_string).collect();
    ApiReply::ok(&MembersChanged { audience_id: id, added, removed, departed, not_found })
}

/// Contacts as a caller names them.
fn read_names(path: &str, texts: &[String], faults: &mut Faults) -> Vec<NamedContact> {
    let read = |(position, text): (usize, &String)| {
        let name = NamedContact::parse(text);
        let at = format!("{path}[{position}]");
        faults.require(name.is_some(), &at, "invalid", "is neither a contact id nor an address");
        name
    };
    texts.iter().enumerate().filter_map(read).collect()
}
