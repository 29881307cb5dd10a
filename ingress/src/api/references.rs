//! What refers to an object that is to be removed. A campaign that is over, an archived sequence, steps of a sequence that no contact goes
//! through any more, and an archived template that no other step sends keep nothing.

use sqlx::PgConnection;
use uuid::Uuid;

use crate::pipeline::error::{ApiError, Reference};

/// 409 `<object>_in_use` with what refers to the object, unless nothing does. `way_out` says what the caller can do.
///
/// # Errors
/// If there is a reference.
pub(crate) fn refuse(object: &str, references: Vec<Reference>, way_out: &str) -> Result<(), ApiError> {
    let Some(first) = references.first() else { return Ok(()) };
    let others = references.len() - 1;
    let who = match others {
        0 => format!("the {} {} refers to it", first.object, first.id),
        _ => format!("the {} {} and {others} more refer to it", first.object, first.id),
    };
    Err(ApiError::conflict(format!("{object}_in_use")).detail(format!("{who}: {way_out}")).referred_by(references))
}

/// What a statement finds, at most twenty: of a tenant (`$1`) what refers to an object (`$2`). With `step` the statement goes on
/// with a condition on the steps `p` of the sequence `q`: a step counts while its version is the newest, or a contact is on its way through
/// it.
macro_rules! references {
    ($db:ident, $values:tt, $statement:tt step $condition:tt) => {
        references!(
            $db,
            $values,
            $statement
                + " exists (
                       select from sequence_steps p
                       where p.tenant_id = $1 and p.sequence_id = q.id and (p.version = q.version or exists (
                             select from enrollments e
                             where e.tenant_id = $1 and e.sequence_id = q.id and e.version = p.version
                               and e.status in ('active', 'paused')))
                         and "
                + $condition
        )
    };
    ($db:ident, [$($value:expr),+], $($part:tt)+) => {
        sqlx::query_as!(Reference, $($part)+ + " limit 20", $($value),+).fetch_all($db).await
    };
}

/// What refers to a list or tag.
pub(crate) async fn to_audience(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Vec<Reference>> {
    references!(
        db,
        [tenant, id],
        r#"select 'campaign' as "object!", id as "id!", name as "name!" from campaigns
           where tenant_id = $1 and status not in ('sent', 'cancelled') and (list_id = $2 or $2 = any (tag_ids))
           union all
           select 'segment', id, name from segments
           where tenant_id = $1 and deleted_at is null
             and jsonb_path_exists(rule, '$.** ? (@ == $id)', jsonb_build_object('id', $2::uuid::text))
           union all
           select 'sequence', q.id, q.name from sequences q
           where q.tenant_id = $1 and q.status <> 'archived' and (
               $2::uuid::text in (q.trigger_config ->> 'tag_id', q.trigger_config ->> 'list_id')
               or"#
        step "$2::uuid::text in (p.action_config ->> 'tag_id', p.action_config ->> 'list_id')))"
    )
}

/// What refers to a contact field. A sequence goes on sending a template that is archived.
pub(crate) async fn to_field(db: &mut PgConnection, tenant: Uuid, key: &str) -> sqlx::Result<Vec<Reference>> {
    references!(
        db,
        [tenant, key],
        r#"with using_it as (
               select c.id from contents c
               where c.tenant_id = $1 and exists (
                   select from unnest(c.variables) v
                   where v = 'contact.fields.' || $2::text or starts_with(v, 'contact.fields.' || $2 || '.'))
           )
           select 'segment' as "object!", id as "id!", name as "name!" from segments
           where tenant_id = $1 and deleted_at is null
             and jsonb_path_exists(rule, '$.**.field ? (@ == $name)', jsonb_build_object('name', 'fields.' || $2))
           union all
           select 'template', id, name from templates
           where tenant_id = $1 and status <> 'archived' and content_id in (select id from using_it)
           union all
           select 'campaign', k.id, k.name from campaigns k
           where k.tenant_id = $1 and k.status not in ('sent', 'cancelled')
             and (k.content_id in (select id from using_it)
                  or exists (select from campaign_variants v
                             where v.tenant_id = $1 and v.campaign_id = k.id and v.content_id in (select id from using_it)))
           union all
           select 'sequence', q.id, q.name from sequences q
           where q.tenant_id = $1 and q.status <> 'archived' and (
               q.trigger_config ->> 'field' = $2
               or"#
        step "(p.step_type = 'update_field' and p.action_config ->> 'field' = $2
               or p.template_id in (select t.id from templates t
                                    where t.tenant_id = $1 and t.status = 'archived'
                                      and t.content_id in (select id from using_it)))))"
    )
}

/// What refers to a segment: another segment, a sequence whose trigger names it, or a campaign that is not over.
pub(crate) async fn to_segment(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Vec<Reference>> {
    references!(
        db,
        [tenant, id],
        r#"select 'segment' as "object!", s.id as "id!", s.name as "name!"
           from segment_uses u join segments s on s.tenant_id = $1 and s.id = u.segment_id
           where u.tenant_id = $1 and u.uses = $2
           union all
           select 'sequence', id, name from sequences
           where tenant_id = $1 and trigger_config ->> 'segment_id' = $2::uuid::text and status <> 'archived'
           union all
           select 'campaign', id, name from campaigns
           where tenant_id = $1 and segment_id = $2 and status not in ('sent', 'cancelled')"#
    )
}

/// What refers to a sender: campaigns, also past ones, and sequences.
pub(crate) async fn to_sender(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Vec<Reference>> {
    references!(
        db,
        [tenant, id],
        r#"select 'campaign' as "object!", id as "id!", name as "name!" from campaigns
           where tenant_id = $1 and sender_profile_id = $2
           union all
           select 'sequence', id, name from sequences
           where tenant_id = $1 and sender_profile_id = $2"#
    )
}

/// What refers to a domain: senders, and the tenant that has chosen it for tracking.
pub(crate) async fn to_domain(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Vec<Reference>> {
    references!(
        db,
        [tenant, id],
        r#"select 'tenant' as "object!", id as "id!", coalesce(org_name, '') as "name!" from tenants
           where id = $1 and tracking_domain_id = $2
           union all
           select 'sender', id, email from senders where tenant_id = $1 and domain_id = $2"#
    )
}

/// What refers to a snippet or a layout: templates whose current version holds it, campaigns that are not over and have a body of their own
/// with it, and snippets that mention it.
pub(crate) async fn to_snippet(
    db: &mut PgConnection,
    tenant: Uuid,
    id: Uuid,
    name: &str,
) -> sqlx::Result<Vec<Reference>> {
    references!(
        db,
        [tenant, id, name],
        r#"select 'template' as "object!", t.id as "id!", t.name as "name!"
           from content_snippets u
           join templates t on t.tenant_id = $1 and t.content_id = u.content_id
           where u.tenant_id = $1 and u.snippet_id = $2 and t.status <> 'archived'
           union all
           select 'campaign', k.id, k.name from campaigns k
           where k.tenant_id = $1 and k.status in ('draft', 'scheduled', 'sending') and exists (
               select from campaign_snippets h where h.tenant_id = $1 and h.campaign_id = k.id and h.snippet_id = $2)
           union all
           select 'snippet', s.id, s.name
           from snippets s
           join snippet_versions v on v.tenant_id = $1 and v.snippet_id = s.id and v.version = s.version
           where s.tenant_id = $1 and s.id <> $2 and s.deleted_at is null and $3 = any (v.mentions)"#
    )
}

/// What refers to a draft campaign: segments ask what happened to its mail.
pub(crate) async fn to_campaign(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> sqlx::Result<Vec<Reference>> {
    references!(
        db,
        [tenant, id],
        r#"select 'segment' as "object!", id as "id!", name as "name!" from segments
           where tenant_id = $1 and deleted_at is null
             and jsonb_path_exists(rule, '$.** ? (@ == $id)', jsonb_build_object('id', $2::uuid::text))"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_refers_and_what_to_do() {
        let reference =
            |n: u128| Reference { object: "campaign".into(), id: Uuid::from_u128(n), name: "Spring".into() };
        assert!(refuse("segment", Vec::new(), "change it").is_ok());
        let refused = refuse("segment", vec![reference(1), reference(2)], "change them").err();
        let refused =
            refused.map(|error| (error.code.into_owned(), error.detail, error.references.map(|all| all.0.len())));
        let detail = format!("the campaign {} and 1 more refer to it: change them", Uuid::from_u128(1));
        assert_eq!(refused, Some(("segment_in_use".to_owned(), Some(detail), Some(2))));
    }
}
