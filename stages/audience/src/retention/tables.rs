//! The retention rule of every table.

use ledger::frequency;

use super::Keep;

/// Old rows of one table.
#[derive(Debug, Clone, Copy)]
pub struct RetentionRule {
    /// The table.
    pub table: &'static str,
    /// The setting that says when rows are old.
    pub keep: Keep,
    /// Which rows `r` of a tenant `t` (or, for [`Rows::All`], of all) are old at `$1`, in the order of the index that finds them.
    rows: Rows,
    /// What becomes of them.
    end: End,
}

#[derive(Debug, Clone, Copy)]
enum Rows {
    OfTenant(&'static str),
    /// The rows whose `key` names a row `o` of the table `of` that is gone. Whether it has any is asked of their primary key, one after the
    /// other: a join would read all rows of the tenant, as those whose rows were deleted long ago look as large as others.
    OfGone {
        key: &'static str,
        of: &'static str,
        gone: &'static str,
    },
    All(&'static str),
}

#[derive(Debug, Clone, Copy)]
enum End {
    Deleted,
    /// This SQL function of a tenant and ids ends them, and answers which.
    By(&'static str),
}

impl RetentionRule {
    /// One slice: `$1` before when rows are old, `$2` how many rows at most. A tenant without old rows costs one look at the index.
    #[must_use]
    pub fn statement(&self) -> String {
        let table = self.table;
        // A row that another transaction makes young again meanwhile stays: without the lock its new version would be deleted. Rows that never
        // change need none, and nobody may lock them.
        let lock = if matches!(self.keep, Keep::Audit | Keep::RequestLog) { "" } else { "for update of r skip locked" };
        let old = match self.rows {
            Rows::OfTenant(old) => self.of_each_tenant(old, lock),
            Rows::OfGone { key, of, gone } => {
                let old = format!(
                    "r.ctid = any(array(
                         select m.ctid from {of} o
                         cross join lateral (
                             select n.tenant_id, n.{key} from {table} n
                             where (n.tenant_id, n.{key}) >= (o.tenant_id, o.id)
                             order by n.tenant_id, n.{key}, n.contact_id limit 1
                         ) n
                         cross join lateral (
                             select m.ctid from {table} m where m.tenant_id = n.tenant_id and m.{key} = n.{key} limit $2
                         ) m
                         where o.tenant_id = t.id and {gone} and (n.tenant_id, n.{key}) = (o.tenant_id, o.id)
                         limit $2))"
                );
                self.of_each_tenant(&old, lock)
            }
            Rows::All(old) => format!("select r.ctid from {table} r where {old} limit $2 {lock}"),
        };
        match self.end {
            End::Deleted => format!("delete from {table} where ctid = any(array({old}))"),
            End::By(function) => format!(
                "select {function}(tenant_id, array_agg(id)) from {table} where ctid = any(array({old})) group by tenant_id"
            ),
        }
    }

    fn of_each_tenant(&self, old: &str, lock: &str) -> String {
        let table = self.table;
        // Of the two times, the later one: a null is none.
        let before = match self.keep.chosen_by_tenant() {
            Some(days) => format!("greatest($1, now() - make_interval(days => t.{days}))"),
            None => "$1".to_owned(),
        };
        let (tenants, before) = match self.keep {
            // `offset 0`: asked once for each tenant.
            Keep::Requests => (
                format!("(select t.id, before_open_mail(t.id, {before}) as before from tenants t offset 0)"),
                "t.before".to_owned(),
            ),
            _ => ("tenants".to_owned(), before),
        };
        let old = old.replace("$1", &before);
        format!(
            "select k.ctid from {tenants} t cross join lateral (
                 select r.ctid from {table} r where r.tenant_id = t.id and {old} limit $2 {lock}
             ) k limit $2"
        )
    }
}

const fn of_tenant(table: &'static str, keep: Keep, old: &'static str) -> RetentionRule {
    RetentionRule { table, keep, rows: Rows::OfTenant(old), end: End::Deleted }
}

const fn of_gone(table: &'static str, key: &'static str, of: &'static str, gone: &'static str) -> RetentionRule {
    RetentionRule { table, keep: Keep::Days(1), rows: Rows::OfGone { key, of, gone }, end: End::Deleted }
}

const fn of_all(table: &'static str, keep: Keep, old: &'static str) -> RetentionRule {
    RetentionRule { table, keep, rows: Rows::All(old), end: End::Deleted }
}

/// Tables whose month partitions are dropped as a whole.
pub const MONTHLY: &[&str] = &["sends", "events"];

/// The rules of the retention sweep: a table that references another comes first.
pub const RULES: &[RetentionRule] = &[
    of_tenant(
        "requests",
        Keep::Requests,
        // Scheduled mail needs its request, and the files that go with it, after it falls due; `before_open_mail` keeps those of open mail.
        "r.announce_after is null and r.received_at < $1 and coalesce(r.handled_at, r.received_at) < $1 order by r.received_at",
    ),
    RetentionRule {
        // The row stays: others point to it.
        end: End::By("empty_contents"),
        ..of_tenant(
            "contents",
            Keep::Requests,
            "r.kind = 'one_off' and r.body_html <> '' and r.id < first_id_at($1)
             and not exists (select from messages m where m.tenant_id = r.tenant_id and m.id = r.id and m.due_at >= $1)
             order by r.id",
        )
    },
    of_tenant("imports", Keep::Imports, "r.created_at < $1 order by r.created_at"),
    of_all("audit_log", Keep::Audit, "r.at < $1 order by r.at"),
    of_all("request_log", Keep::RequestLog, "r.id < first_id_at($1) order by r.id"),
    // All but the first of a campaign and variant, which holds the counters from then on.
    RetentionRule {
        end: End::By("fold_batches"),
        ..of_tenant(
            "batches",
            Keep::Ledger,
            "r.campaign_id is not null and r.id < first_id_at($1) and r.state = 'done'
             and r.id > (select f.id from batches f
                         where f.tenant_id = r.tenant_id and f.campaign_id = r.campaign_id and f.variant is not distinct from r.variant
                         order by f.id limit 1)
             order by r.id",
        )
    },
    of_tenant(
        "batches",
        Keep::Ledger,
        "r.campaign_id is null and r.id < first_id_at($1) and r.state = 'done' order by r.id",
    ),
    of_tenant("message_recipients", Keep::Ledger, "r.send_id < first_id_at($1) order by r.send_id"),
    of_tenant(
        "messages",
        Keep::Ledger,
        "r.id < first_id_at($1)
         and not exists (select from message_recipients p where p.tenant_id = r.tenant_id and p.message_id = r.id)
         and not exists (select from message_attachments a where a.tenant_id = r.tenant_id and a.message_id = r.id)
         order by r.id",
    ),
    of_tenant("sequence_sends", Keep::Ledger, "r.send_id < first_id_at($1) order by r.send_id"),
    of_tenant(
        "enrollment_steps",
        Keep::Ledger,
        "r.enrollment_id in (
             select e.id from enrollments e
             where e.tenant_id = t.id and e.created_at < $1 and e.ended_at < $1 order by e.created_at limit 1000)",
    ),
    // Of those whose steps the rule above deletes; later ones still have theirs.
    of_tenant(
        "enrollments",
        Keep::Ledger,
        "r.ctid = any(array(
             select e.ctid from enrollments e
             where e.tenant_id = t.id and e.created_at < $1 and e.ended_at < $1 order by e.created_at limit 1000))
         and not exists (select from enrollment_steps p where p.tenant_id = r.tenant_id and p.enrollment_id = r.id)",
    ),
    // Of a sequence that starts nobody any more.
    of_gone("past_enrollments", "sequence_id", "sequences", "o.status = 'archived' and o.archived_at < $1"),
    of_tenant("contact_facts", Keep::Ledger, "r.send_id < first_id_at($1) order by r.send_id"),
    of_tenant(
        "capped_sends",
        Keep::Days(frequency::DAYS_MAX as u16),
        "r.fenced_at < $1 and r.send_id < first_id_at($1) order by r.send_id",
    ),
    of_tenant("product_events", Keep::Ledger, "r.id < first_id_at($1) order by r.id"),
    of_tenant("trigger_occurrences", Keep::Ledger, "r.decided_at is not null and r.noted_at < $1 order by r.noted_at"),
    // Of a trigger that is gone. Of others sequencing deletes them, when the contact is not in the segment any more.
    of_gone(
        "segment_entries",
        "sequence_id",
        "sequences",
        "o.updated_at < $1 and (o.trigger_type <> 'segment_entered' or o.trigger_config is null or o.status = 'archived')",
    ),
    // Once every trigger by a segment was looked at since; `least` leaves out the null of a tenant that has none.
    of_tenant(
        "segments_passed",
        Keep::Days(1),
        "r.passed_at < least($1, (select min(s.triggers_swept_at) from segment_triggers(t.id) s)) order by r.passed_at",
    ),
    // Of a list or tag that is removed: nothing asks for them from then on.
    of_gone("audience_members", "audience_id", "audiences", "o.deleted_at < $1"),
    // Of one that ends, which stops no mail since then. Others stay: an opt-out or a bounce outlives the contact.
    of_tenant("suppressions", Keep::Days(30), "r.expires_at < $1 order by r.expires_at"),
    of_tenant("notices", Keep::Ledger, "r.recorded_at < $1 order by r.recorded_at"),
    of_tenant("outcome_restatements", Keep::Ledger, "r.restated_at < $1 order by r.restated_at"),
    of_tenant("send_usage", Keep::Ledger, "r.day < $1::date order by r.day"),
    of_tenant("draft_proposals", Keep::Ledger, "r.created_at < $1 and r.status <> 'open' order by r.created_at"),
    of_tenant("erasures", Keep::Ledger, "r.asked_at < $1 and r.finished_at is not null"),
    of_all(
        "traces",
        Keep::Days(runtime::trace::KEPT_FOR_DAYS.unsigned_abs() as u16),
        "r.kept_at < $1 order by r.kept_at",
    ),
    of_all("inbound_events", Keep::Inbound, "r.received_at < $1 and r.due_at is null order by r.received_at"),
    of_all("inbound_mails", Keep::Inbound, "r.received_at < $1 and r.due_at is null order by r.received_at"),
    // Dropped ones; engagement deletes those whose send it finds.
    of_all("pending_facts", Keep::Inbound, "r.dropped_at < $1 order by r.dropped_at"),
    // Reports about a mail come up to weeks later.
    of_all("provider_messages", Keep::Days(90), "r.noted_at < $1 order by r.noted_at"),
    // Delivery keeps the newest 500 of a tenant at most.
    of_all("captured_mails", Keep::Days(7), "r.captured_at < $1 order by r.captured_at"),
    // A rate that was not renewed for an hour is ignored.
    of_all("paces", Keep::Days(1), "r.updated_at < $1 order by r.updated_at"),
    // Every stage deletes its own rows when handling ends: the rest are of processes that died with messages that never came again.
    of_all("message_starts", Keep::Days(2), "r.started_at < $1 order by r.started_at"),
    // Priority mail has its outcome within two days; this is well past that.
    of_all("renditions", Keep::Days(4), "r.created_at < $1 order by r.created_at"),
    of_all("webhook_totals", Keep::Days(7), "r.hour < $1 order by r.hour"),
    // One row for each endpoint at most: looked through in the order of their key, as an index of a time that is set every few seconds
    // would cost more.
    of_all("webhook_leases", Keep::Days(1), "r.lease_until < $1 order by r.subscription_id"),
];

/// Tables whose stage deletes their rows itself, when they are used up or shortly after.
pub const SWEPT_BY_THEIR_STAGE: &[(&str, &str)] = &[
    ("nonces", "ingress, after 15 minutes"),
    ("rate_counts", "ingress, after 5 minutes"),
    ("idempotency_keys", "ingress, after 24 hours"),
    ("heartbeats", "every process, after its stages ended"),
    ("removed_fields", "audience, when no contact has a value any more"),
    ("launch_audiences", "audience, when the campaign is complete"),
    ("campaign_paces", "audience, when the campaign is complete"),
    ("message_attachments", "rendering, after 4 days"),
    ("delivery_sessions", "delivery, when the process is long gone"),
    ("soft_bounces", "engagement, after the window they count in, which is a setting"),
    ("suppression_changes", "engagement, folded into totals"),
    ("audience_member_changes", "engagement, folded into totals"),
    ("content_changes", "engagement, folded into totals"),
    ("late_facts", "attribution, when they are handled"),
    ("outcome_credits", "attribution, when the credit is set anew"),
    ("outbox", "webhooks, when its facts are events"),
    ("feed_notes", "webhooks, when its facts are published"),
    ("webhook_events", "webhooks, after webhook-keep"),
    ("webhook_deliveries", "webhooks, after webhook-keep"),
    ("webhook_queue", "webhooks, when a delivery is over"),
    ("webhook_dead", "with its delivery"),
    ("webhook_replays", "webhooks, after webhook-keep"),
    ("enrollment_checks", "sequencing, when they are handled"),
];

/// Tables that are kept, with the reason.
pub const KEPT: &[(&str, &str)] = &[
    ("tenants", "the customer"),
    ("tenant_links", "the customer"),
    ("api_keys", "settings; one row for each key ever issued, so that an audit entry can be read"),
    ("assistant_approvals", "settings: the approvals that were given"),
    ("attribution_settings", "settings"),
    ("call_secrets", "settings"),
    ("domain_warmups", "settings"),
    ("warmup_usage", "one row for each day of a warm-up: the plan counts them"),
    ("event_feeds", "settings"),
    ("event_listeners", "settings"),
    ("fields", "settings"),
    ("provider_connections", "settings"),
    ("connection_health", "one row for each connection"),
    ("connection_checks", "at most one row for each connection"),
    ("provider_pings", "one row for each provider"),
    ("send_limits", "settings"),
    ("stage_pauses", "settings"),
    ("webhook_subscriptions", "settings, and which endpoint got events"),
    ("domains", "the customer's sending domains"),
    ("senders", "the customer's senders; mail that was sent names them"),
    ("audiences", "the customer's own data"),
    ("contacts", "the customer's own data; erased on request"),
    (
        "confirmations",
        "a proof of consent, or that it was asked for and not given; an erasure leaves the number of mails",
    ),
    ("segments", "the customer's own data"),
    ("segment_uses", "the customer's own data"),
    ("templates", "the customer's own data"),
    ("template_versions", "the customer's own data: sends pin them"),
    ("snippets", "the customer's own data"),
    ("snippet_versions", "the customer's own data: contents name them"),
    ("content_snippets", "which snippets a content holds"),
    ("skeletons", "compiled templates: one for each version that was sent; those of one-off messages go after 4 days"),
    ("campaigns", "the customer's own data, with its final counts"),
    ("campaign_variants", "the customer's own data"),
    ("sequences", "the customer's own data"),
    ("sequence_steps", "the customer's own data"),
    ("outcomes", "the customer's own records of business"),
    ("topic_opt_outs", "an opt-out from a topic"),
    ("suppression_totals", "totals"),
    ("audience_member_totals", "totals"),
    ("rollups", "totals: reports of any window"),
    ("content_totals", "totals: reports of any window"),
    ("campaign_outcomes", "totals"),
    ("outcome_hours", "totals"),
    ("dropped_months", "one row a month"),
    ("ledger", "one row"),
];
