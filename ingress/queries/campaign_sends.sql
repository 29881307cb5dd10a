-- Sends of a campaign, newest first. $1 tenant, $2 campaign, $3 month partition, $4 state or null, $5 the last id of the page
-- before or null, $6 how many, $7 variant or null.
-- Batches come from `batches_by_campaign`, newest first; those without a send in the state are passed over by their counters.
-- A batch's sends are one range of the primary key, `batch` to its `last_id_of`.
select s.id as send_id, b.kind as "message_kind: _", s.campaign_id, null::uuid as "message_id?",
       s.contact_id as "contact_id?", c.address as "email?",
       s.state as "state: _", case when s.state = 'skipped' then s.reason end as "skip_reason?",
       case when s.state <> 'skipped' then s.reason end as "failure_reason?", s.attempts as attempt_count, s.smtp_code, s.enhanced_code,
       s.response, s.provider, s.provider_message_id,
       case when s.state = 'deferred' then s.next_attempt_at end as "next_attempt_at?", s.decided_at,
       jsonb_build_object('delivered_at', s.delivered_at, 'bounced_at', s.bounced_at, 'complained_at', s.complained_at,
                          'opened_at', s.opened_at, 'human_opened_at', s.human_opened_at, 'clicked_at', s.clicked_at,
                          'human_clicked_at', s.human_clicked_at, 'unsubscribed_at', s.unsubscribed_at,
                          'replied_at', s.replied_at) as "facts!: Json<SendFacts>",
       b.classification as "classification: _", b.lane as "lane: _", b.content_id as "content_id?", b.sender_id as "sender_id?",
       b.variant, b.created_at, t.template_id as "template_id?",
       t.version as "template_version?", null::uuid as "sequence_id?", null::uuid as "enrollment_id?", null::uuid as "step_id?",
       null::jsonb as "options?: Json<MailOptions>"
from batches b
cross join lateral (
    select *
    from sends
    where sends.tenant_id = b.tenant_id
      and sends.month = $3
      and sends.id >= b.id
      and sends.id <= last_id_of(b.id)
      and ($4::text is null or sends.state = $4)
      and ($5::uuid is null or sends.id < $5)
    order by sends.id desc
    limit $6
) s
left join contacts c on c.tenant_id = s.tenant_id and c.id = s.contact_id and c.status <> 'erased'
cross join lateral template_of_mail(b.tenant_id, b.content_id, b.campaign_id, b.variant) t
where b.tenant_id = $1
  and b.campaign_id = $2
  and ($5::uuid is null or b.id < $5)
  and ($7::text is null or b.variant = $7)
  and ($4::text is null or 0 < case $4::text
        when 'queued' then b.queued when 'fenced' then b.fenced when 'deferred' then b.deferred
        when 'sent' then b.sent when 'failed' then b.failed when 'unknown' then b.unknown when 'skipped' then b.skipped
        when 'cancelled' then b.cancelled when 'expired' then b.expired end)
order by b.id desc, s.id desc
limit $6
