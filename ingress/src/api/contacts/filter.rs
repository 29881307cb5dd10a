//! Which contacts a list shows.

use chrono::{DateTime, Utc};
use runtime::plans;
use segments::{CompiledSegment, Newest};
use sqlx::{PgConnection, Postgres, QueryBuilder};
use uuid::Uuid;

use crate::{api::exports::WRITING_MAX, pipeline::ListPage};

#[derive(Debug, Default)]
pub(super) struct ContactFilter {
    pub(super) address: Option<String>,
    pub(super) external_id: Option<String>,
    /// Part of the address, the name or the company.
    pub(super) search: Option<String>,
    /// Lists and tags; in each of them.
    pub(super) audiences: Vec<Uuid>,
    pub(super) segment: Option<CompiledSegment>,
    pub(super) status: Option<&'static str>,
    pub(super) updated_since: Option<DateTime<Utc>>,
}

impl ContactFilter {
    /// The ids of one page, newest first, and one more. Only the filters that are asked for are in the statement, so that each
    /// is planned for what it is: by address, by the members of a small list, or down `contacts_newest` until the page is full.
    ///
    /// What no index answers is looked for among the newest contacts first: a common thing fills the page from there. Then
    /// everybody is asked, in the order in which contacts are on disk. So are those that have changed, of a list too: an index of the times
    /// of changes would be written at every change of a contact, and all others of the table with it.
    pub(super) async fn page(&self, db: &mut PgConnection, tenant: Uuid, page: &ListPage) -> sqlx::Result<Vec<Uuid>> {
        let has_key = self.address.is_some() || self.external_id.is_some();
        let changed_of_all = self.updated_since.is_some() && !has_key;
        if self.segment.is_none() && self.search.is_none() && !changed_of_all {
            return self.query(tenant, page, None).build_query_scalar().fetch_all(db).await;
        }
        let newest = Newest { before: page.before.zip(page.before_id) };
        let ids: Vec<Uuid> = self.query(tenant, page, Some(newest)).build_query_scalar().fetch_all(&mut *db).await?;
        if i64::try_from(ids.len()).is_ok_and(|found| found == page.fetch()) {
            return Ok(ids);
        }
        plans::many_rows(&mut *db).await?;
        let ids = self.query(tenant, page, None).build_query_scalar().fetch_all(&mut *db).await?;
        plans::few_rows(db).await?;
        Ok(ids)
    }

    fn query(&self, tenant: Uuid, page: &ListPage, newest: Option<Newest>) -> QueryBuilder<Postgres> {
        let mut query = QueryBuilder::new("select c.id from ");
        match (&self.segment, newest) {
            (Some(segment), Some(newest)) => segment.push_newest(&mut query, tenant, &newest),
            (Some(segment), None) => segment.push(&mut query, tenant),
            (None, newest) => {
                match newest {
                    Some(newest) => newest.push(&mut query, tenant),
                    None => drop(query.push("contacts c")),
                }
                query
                    .push(" where c.tenant_id = ")
                    .push_bind(tenant)
                    .push(" and c.status <> 'erased' and c.merged_into is null");
            }
        }
        if let Some(address) = &self.address {
            push_survivor(&mut query, tenant, "address", address.clone());
        }
        if let Some(id) = &self.external_id {
            push_survivor(&mut query, tenant, "external_id", id.clone());
        }
        if let Some(search) = &self.search {
            push_search(&mut query, search.trim());
        }
        for audience in &self.audiences {
            query.push(" and exists (select from audience_members m where m.tenant_id = ").push_bind(tenant);
            query.push(" and m.audience_id = ").push_bind(*audience).push(" and m.contact_id = c.id)");
        }
        if let Some(status) = self.status {
            // A constant, not a parameter: `contacts_archived` is there for one status only.
            query.push(if status == "archived" { " and c.status = 'archived'" } else { " and c.status = 'active'" });
        }
        if let Some(since) = self.updated_since {
            // A change has the time at which its transaction began, and can be read after its end.
            query.push(" and c.updated_at >= ").push_bind(since - WRITING_MAX);
        }
        if let Some((before, id)) = page.before.zip(page.before_id) {
            query.push(" and (c.created_at, c.id) < (").push_bind(before).push(", ").push_bind(id).push(")");
        }
        query.push(" order by c.created_at desc, c.id desc limit ").push_bind(page.fetch());
        query
    }
}

/// The contact with this value, or the one that it was merged into.
fn push_survivor(query: &mut QueryBuilder<Postgres>, tenant: Uuid, column: &'static str, value: String) {
    query
        .push(" and c.id = (select coalesce(n.merged_into, n.id) from contacts n where n.tenant_id = ")
        .push_bind(tenant);
    query.push(" and n.").push(column).push(" = ").push_bind(value).push(")");
}

/// Without regard to case. No index helps to find a part of a text, so what counts is the cost for each contact: one text is
/// made of all, put into lower case at once and searched for bytes. For a plain ASCII text the "C" collation's lower case finds
/// the same and costs half.
fn push_search(query: &mut QueryBuilder<Postgres>, text: &str) {
    query.push(
        " and strpos(lower((c.address || E'\\n' || coalesce(c.first_name, '') || ' ' || coalesce(c.last_name, '') || E'\\n' \
         || coalesce(c.company, ''))",
    );
    query.push(if text.is_ascii() { " collate \"C\"" } else { "" });
    query.push("), lower(").push_bind(text.to_owned()).push(")) > 0");
}
