//! The lookups and rows of an array: one statement for each step, whatever the number of requests.

use std::collections::{BTreeSet, HashMap};

use schemas::DomainStatus;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{super::TemplateContent, ArrayItems};
use crate::{
    api::senders::store::Readiness,
    pipeline::{auth::keys::Caller, check_tenant},
};

/// Finds the tenant of each item. Refuses items whose tenant is not linked to the caller's product.
pub(super) async fn find_tenants(db: &mut PgConnection, caller: &Caller, items: &mut ArrayItems) -> sqlx::Result<()> {
    let claims = items.iter().filter_map(|item| item.claim.as_ref());
    let names: BTreeSet<String> = claims.map(|claim| claim.product_tenant_id.clone()).collect();
    let rows = sqlx::query!(
        "select product_tenant_id, tenant_id from tenant_links
         where product = $1 and environment = $2 and product_tenant_id = any ($3)",
        caller.product,
        caller.environment.as_str(),
        &Vec::from_iter(names),
    )
    .fetch_all(db)
    .await?;
    let found: HashMap<String, Uuid> = rows.into_iter().map(|row| (row.product_tenant_id, row.tenant_id)).collect();
    for item in items.open_mut() {
        let Some(claim) = &item.claim else { continue };
        match check_tenant(found.get(&claim.product_tenant_id).copied(), caller, claim) {
            Ok(tenant) => item.tenant = Some(tenant),
            Err(error) => item.refuse(&error),
        }
    }
    Ok(())
}

/// The current content of each template that exists and is not archived.
pub(super) async fn find_contents(
    db: &mut PgConnection,
    tenant: Uuid,
    templates: &[Uuid],
) -> sqlx::Result<HashMap<Uuid, TemplateContent>> {
    let rows = sqlx::query!(
        r#"select t.id, t.content_id,
                  coalesce(names_event(c.variables), false) as "uses_event!"
           from unnest($2::uuid[]) as w (id)
           join templates t on t.tenant_id = $1 and t.id = w.id
           left join contents c on c.tenant_id = $1 and c.id = t.content_id and t.template_type = 'sequence'
           where t.status <> 'archived'"#,
        tenant,
        templates,
    )
    .fetch_all(db)
    .await?;
    let content = |id, uses_event| TemplateContent { id, uses_event };
    Ok(rows.into_iter().map(|row| (row.id, content(row.content_id, row.uses_event))).collect())
}

/// The senders with these ids and, under none, the tenant's default. None of them is removed before this transaction ends.
pub(super) async fn find_senders(
    db: &mut PgConnection,
    tenant: Uuid,
    ids: &[Uuid],
) -> sqlx::Result<HashMap<Option<Uuid>, Readiness>> {
    let rows = sqlx::query!(
        r#"select s.id, s.is_default, s.status = 'active' as "active!", d.status as "domain_status: DomainStatus"
           from senders s
           join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
           where s.tenant_id = $1 and (s.id = any ($2) or s.is_default)
           order by s.id
           for key share of s"#,
        tenant,
        ids,
    )
    .fetch_all(db)
    .await?;
    let mut senders = HashMap::new();
    for row in rows {
        let readiness = Readiness { id: row.id, active: row.active, domain_status: row.domain_status };
        senders.insert(Some(row.id), readiness);
        if row.is_default {
            senders.insert(None, readiness);
        }
    }
    Ok(senders)
}
