//! What is exported, slice by slice. Each slice is a range of the table's own key, tenant first.

use std::future::Future;

use serde::Serialize;
use serde_json::Value;
use sqlx::PgConnection;
use uuid::Uuid;

use super::{ExportCursor, ExportSlice, SLICE_ROWS};
use crate::pipeline::page::{OptionalTime, Time};

/// A row of an export.
pub(super) trait ExportRow: Serialize + Send + Sync + Sized + 'static {
    /// What is exported, as the path says it.
    const NAME: &'static str;

    /// The columns of CSV, in order.
    fn columns() -> impl Iterator<Item = &'static str>;

    /// Its key.
    fn cursor(&self) -> ExportCursor;

    /// The rows of a slice, in the order of keys. It reads no more rows than it answers.
    fn slice(db: &mut PgConnection, slice: &ExportSlice<Self>) -> impl Future<Output = sqlx::Result<Vec<Self>>> + Send;

    /// False for a row that is left out of what was asked for.
    fn is_wanted(&self, _slice: &ExportSlice<Self>) -> bool {
        true
    }
}

fn by_id(id: Uuid) -> ExportCursor {
    ExportCursor { first: id, second: Uuid::nil() }
}

/// Makes a row of an export. Its fields are the columns of CSV. In the statement `$1` is the tenant, `$2` the key that the rows come after,
/// `$3` how many; what else it needs of the slice follows, and what else it implements.
macro_rules! exported {
    (
        $(#[$about:meta])*
        $name:literal: $type:ident by $row:ident => $cursor:expr,
        { $($(#[$note:meta])* $column:ident: $of:ty,)+ }
        $statement:tt $(, $slice:ident => $($value:expr),+)? $(; $($function:tt)+)?
    ) => {
        $(#[$about])*
        #[derive(Debug, Serialize)]
        pub(super) struct $type { $($(#[$note])* $column: $of,)+ }

        impl ExportRow for $type {
            const NAME: &'static str = $name;

            fn columns() -> impl Iterator<Item = &'static str> {
                // The column `type` is a keyword of Rust.
                [$(stringify!($column)),+].into_iter().map(|column| column.trim_start_matches("r#"))
            }

            fn cursor(&self) -> ExportCursor {
                let $row = self;
                $cursor
            }

            async fn slice(db: &mut PgConnection, slice: &ExportSlice<Self>) -> sqlx::Result<Vec<Self>> {
                $(let $slice = slice;)?
                sqlx::query_as!(Self, $statement, slice.tenant, slice.start().first, SLICE_ROWS $($(, $value)+)?)
                    .fetch_all(db)
                    .await
            }

            $($($function)+)?
        }
    };
}

exported! {
    /// A contact.
    "contacts": ExportedContact by row => by_id(row.contact_id),
    {
        contact_id: Uuid,
        external_id: Option<String>,
        email: String,
        first_name: Option<String>,
        last_name: Option<String>,
        title: Option<String>,
        phone: Option<String>,
        company: Option<String>,
        dot_number: Option<i64>,
        timezone: Option<String>,
        locale: Option<String>,
        lifecycle_stage: Option<String>,
        fields: Value,
        status: String,
        marketing_status: String,
        source: Option<String>,
        consent_basis: Option<String>,
        consent_at: OptionalTime,
        consent_source: Option<String>,
        consent_description: Option<String>,
        /// When the person opted in.
        opted_in_at: OptionalTime,
        /// By name.
        lists: Vec<String>,
        tags: Vec<String>,
        created_at: Time,
        updated_at: Time,
    }
    r#"select c.id as contact_id, c.external_id, c.address as email, c.first_name, c.last_name, c.title, c.phone, c.company,
              c.dot_number, c.timezone, c.locale, c.lifecycle_stage, c.fields - (select keys from removed_keys($1)) as "fields!", c.status,
              c.marketing_status, c.source, c.consent_basis, c.consent_at, c.consent_source, c.consent_description, c.opted_in_at, m.lists as "lists!",
              m.tags as "tags!", c.created_at, c.updated_at
       from (select * from contacts where tenant_id = $1 and id > $2 and status in ('active', 'archived') order by id limit $3) c
       cross join lateral (
           select coalesce(array_agg(a.name order by a.name) filter (where a.kind = 'list'), '{}') as lists,
                  coalesce(array_agg(a.name order by a.name) filter (where a.kind = 'tag'), '{}') as tags
           from audience_members o
           join audiences a on a.tenant_id = o.tenant_id and a.id = o.audience_id and a.deleted_at is null
           where o.tenant_id = c.tenant_id and o.contact_id = c.id
       ) m
       order by c.id"#
}

exported! {
    /// A suppression.
    "suppressions": ExportedSuppression by row => by_id(row.suppression_id),
    {
        suppression_id: Uuid,
        email: String,
        reason: String,
        scope: String,
        source: String,
        send_id: Option<Uuid>,
        note: Option<String>,
        created_at: Time,
        expires_at: OptionalTime,
    }
    "select id as suppression_id, address as email, reason, scope, source, send_id, note, created_at, expires_at
     from suppressions where tenant_id = $1 and id > $2 order by id limit $3"
}

exported! {
    /// A send.
    "sends": ExportedSend by row => by_id(row.send_id),
    {
        send_id: Uuid,
        /// Campaign, sequence, transactional, one_off or test.
        message_kind: Option<String>,
        campaign_id: Option<Uuid>,
        sequence_id: Option<Uuid>,
        enrollment_id: Option<Uuid>,
        step_id: Option<Uuid>,
        /// Of an A/B test; null while it waits for the winner.
        variant: Option<String>,
        template_id: Option<Uuid>,
        /// Of mail that a request asked for: shared by its copies.
        request_id: Option<Uuid>,
        contact_id: Uuid,
        email: Option<String>,
        state: String,
        reason: Option<String>,
        attempts: i16,
        provider: Option<String>,
        smtp_code: Option<i16>,
        enhanced_code: Option<String>,
        /// As the caller gave them, as long as the request is kept.
        tags: Option<Value>,
        metadata: Option<Value>,
        decided_at: OptionalTime,
        delivered_at: OptionalTime,
        bounced_at: OptionalTime,
        complained_at: OptionalTime,
        opened_at: OptionalTime,
        clicked_at: OptionalTime,
        replied_at: OptionalTime,
        unsubscribed_at: OptionalTime,
    }
    r#"select s.id as send_id, b.kind as "message_kind?", s.campaign_id, q.sequence_id as "sequence_id?", q.enrollment_id as "enrollment_id?",
              q.step_id as "step_id?", b.variant as "variant?", t.template_id as "template_id?",
              s.request_id, s.contact_id, c.address as "email?", s.state, s.reason, s.attempts, s.provider,
              s.smtp_code, s.enhanced_code, r.options -> 'tags' as tags, r.options -> 'metadata' as metadata, s.decided_at, s.delivered_at, s.bounced_at, s.complained_at, s.opened_at,
              s.clicked_at, s.replied_at, s.unsubscribed_at
       from (select * from sends where tenant_id = $1 and id > $2 order by id limit $3) s
       left join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id and c.status <> 'erased'
       left join requests r on r.tenant_id = s.tenant_id and r.id = s.request_id
       left join lateral (
           select b.kind, b.variant, b.content_id from batches b where b.tenant_id = s.tenant_id and b.id = batch_of(s.id) offset 0
       ) b on true
       left join sequence_sends q on q.tenant_id = s.tenant_id and q.send_id = s.id
       cross join lateral template_of_mail(s.tenant_id, b.content_id, s.campaign_id, b.variant) t
       order by s.id"#
}

exported! {
    /// A fact about a send.
    "events": ExportedEvent by row => ExportCursor { first: row.send_id, second: row.event_id },
    {
        send_id: Uuid,
        event_id: Uuid,
        r#type: String,
        occurred_at: Time,
        recorded_at: Time,
        detail: Value,
    }
    r#"select send_id as "send_id!", id as "event_id!", type as "type!", occurred_at as "occurred_at!", recorded_at as "recorded_at!",
              detail as "detail!"
       from (
           (select send_id, id, type, occurred_at, recorded_at, detail from events
            where tenant_id = $1 and (send_id, id) > ($2, $4) order by send_id, id limit $3)
           union all
           (select send_id, id, type, occurred_at, recorded_at, detail from acceptances
            where tenant_id = $1 and send_id >= $2 and (send_id, id) > ($2, $4) order by send_id limit $3)
       ) f
       order by send_id, id limit $3"#, slice => slice.start().second;
    // Not in the statement: there it would search a whole tenant for a slice of new events.
    fn is_wanted(&self, slice: &ExportSlice<Self>) -> bool {
        slice.recorded_since().is_none_or(|since| self.recorded_at.0 >= since)
    }
}

exported! {
    /// An event that a product reported.
    "product_events": ExportedProductEvent by row => by_id(row.event_id),
    {
        event_id: Uuid,
        product: String,
        /// The product's own id.
        source_event_id: Option<String>,
        contact_id: Uuid,
        email: Option<String>,
        name: String,
        properties: Value,
        occurred_at: Time,
        received_at: Time,
    }
    r#"select e.id as event_id, e.product, e.event_id as source_event_id, e.contact_id, c.address as "email?", e.name, e.properties,
              e.occurred_at, e.received_at
       from (select * from product_events where tenant_id = $1 and id > $2 order by id limit $3) e
       left join contacts c on c.tenant_id = e.tenant_id and c.id = e.contact_id and c.status <> 'erased'
       order by e.id"#
}
