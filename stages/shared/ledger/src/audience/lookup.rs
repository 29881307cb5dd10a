//! Statements over an audience that is a segment.
//!
//! The statements are files, checked at compile time for lists and tags, whose members they select themselves. For a segment, the
//! compiled rule replaces the member selection; the rest is the same text.

use sqlx::{Arguments, PgConnection, Postgres, QueryBuilder, error::BoxDynError, postgres::PgArguments};
use uuid::Uuid;

use super::AudienceSelector;
use segments::{self, CompiledSegment, SegmentError};

/// The member selection in the statements, for lists and tags.
const MEMBERS: &str = "select m.contact_id from audience_members m where m.tenant_id = $1 and m.audience_id = any ($2)";

/// The compiled segment of a selector; `None` for lists and tags.
pub(crate) async fn segment_of(
    db: &mut PgConnection,
    tenant: Uuid,
    selector: &AudienceSelector,
) -> Result<Option<CompiledSegment>, SegmentError> {
    match selector {
        AudienceSelector::List(_) | AudienceSelector::Tags(_) => Ok(None),
        AudienceSelector::Segment(id) => segments::load(db, tenant, *id).await.map(Some),
    }
}

/// The statement over a segment. `bind` adds the parameters from `$3` on.
pub(crate) fn over_segment(
    sql: &'static str,
    tenant: Uuid,
    segment: &CompiledSegment,
    bind: impl FnOnce(&mut PgArguments) -> Result<(), BoxDynError>,
) -> sqlx::Result<QueryBuilder<Postgres>> {
    let mut arguments = PgArguments::default();
    arguments.add(tenant).map_err(sqlx::Error::Encode)?;
    arguments.add(Vec::<Uuid>::new()).map_err(sqlx::Error::Encode)?;
    bind(&mut arguments).map_err(sqlx::Error::Encode)?;
    let (before, after) = sql.split_once(MEMBERS).unwrap_or((sql, ""));
    let mut query = QueryBuilder::with_arguments(before, arguments);
    query.push("select c.id from ");
    segment.push(&mut query, tenant);
    query.push(after);
    Ok(query)
}

/// True if a contact is in the audience now.
///
/// # Errors
/// A segment that cannot be evaluated; Postgres away.
pub async fn includes(
    db: &mut PgConnection,
    tenant: Uuid,
    selector: &AudienceSelector,
    contact: Uuid,
) -> Result<bool, SegmentError> {
    let Some(segment) = segment_of(&mut *db, tenant, selector).await? else {
        let found = sqlx::query_scalar!(
            r#"select exists (
                   select from audience_members m
                   join contacts c on c.tenant_id = $1 and c.id = m.contact_id and c.status = 'active'
                   where m.tenant_id = $1 and m.audience_id = any ($2) and m.contact_id = $3
               ) as "found!""#,
            tenant,
            selector.audiences(),
            contact,
        );
        return Ok(found.fetch_one(db).await?);
    };
    let mut query = QueryBuilder::new("select exists (select from ");
    segment.push(&mut query, tenant);
    query.push(" and c.id = ").push_bind(contact).push(")");
    Ok(query.build_query_scalar().fetch_one(db).await?)
}

/// Some contacts of the audience, in no order: for a sample.
///
/// # Errors
/// As [`includes`].
pub async fn some(
    db: &mut PgConnection,
    tenant: Uuid,
    selector: &AudienceSelector,
    most: i64,
) -> Result<Vec<Uuid>, SegmentError> {
    let Some(segment) = segment_of(&mut *db, tenant, selector).await? else {
        // Served by the key of `audience_members`: it does not sort a million rows for twenty.
        let members = sqlx::query_scalar!(
            "select m.contact_id from (
                 select contact_id from audience_members where tenant_id = $1 and audience_id = any ($2) limit $3) m
             join contacts c on c.tenant_id = $1 and c.id = m.contact_id and c.status = 'active'",
            tenant,
            selector.audiences(),
            most,
        );
        return Ok(members.fetch_all(db).await?);
    };
    let mut query = QueryBuilder::new("select c.id from ");
    segment.push(&mut query, tenant);
    query.push(" limit ").push_bind(most);
    Ok(query.build_query_scalar().fetch_all(db).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_statement_over_an_audience_selects_members_once() {
        for sql in [include_str!("../../queries/audience/count.sql"), include_str!("../../queries/audience/pin.sql")] {
            assert_eq!(sql.matches(MEMBERS).count(), 1, "{sql}");
        }
    }
}
