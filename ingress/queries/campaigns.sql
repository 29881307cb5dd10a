-- Campaigns, newest first; a draft whose launch is being worked on is in preflight. $1 tenant, $2 one of them, or null for a page: then $3 status or null, $4 and $5 the last of the page
-- before or null. $6 how many. Bodies, which may be half a megabyte each, only of the one.
-- Served by the primary key, `campaigns_newest` or `campaigns_by_status`: every plan is made for its parameters.
select c.id, c.name, c.sender_profile_id,
       jsonb_build_object(
           'template_id', c.template_id, 'subject', c.subject, 'preheader', c.preheader,
           'body', case when c.id = $2 then jsonb_build_object('body_html', c.body_html, 'mjml', c.mjml, 'body_text', c.body_text,
                                                               'layout', c.layout) else '{}' end
       ) as "content!: Json<CampaignContent>",
       case when c.id = $2 and c.mjml is not null then (
           select n.body_html from contents n where n.tenant_id = c.tenant_id and n.id = c.content_id) end as compiled_html,
       c.content_id, c.campaign_goal, c.audience_mode, c.list_id, c.segment_id, c.tag_ids, c.message_purpose,
       c.classification as "classification: Classification", c.urgency, c.audience_reason,
       s.status as "status!: CampaignStatus", c.paused, c.pause_reason as "pause_reason: PauseReason",
       v.variants as "variants!: Json<Vec<VariantRow>>",
       case when c.test_percent is not null then jsonb_build_object(
           'test_percent', c.test_percent, 'winner_metric', c.winner_metric, 'decide_after_minutes', c.decide_after_minutes,
           'tested_at', c.tested_at, 'decided_at', c.decided_at,
           'winner', case when c.test_percent < 100 or c.winner_reason = 'highest_rate' then c.winner end, 'winner_reason', c.winner_reason
       ) end as "ab_test?: Json<AbTest>",
       c.not_after, c.on_miss as "on_miss: OnMiss", c.closes_at, c.max_per_minute,
       jsonb_build_object('bounce_percent', c.bounce_percent, 'complaint_percent', c.complaint_percent, 'state', c.tripwire)
           as "tripwire!: Json<TripwireView>",
       c.scheduled_for, c.scheduled_for_local, c.launched_at, c.completed_at, c.created_at, c.updated_at
from campaigns c
cross join lateral (
    select coalesce(jsonb_agg(jsonb_build_object(
               'variant', v.variant, 'name', v.name, 'weight', v.weight, 'subject', v.subject, 'preheader', v.preheader,
               'template_id', v.template_id, 'content_id', v.content_id,
               'body', case when c.id = $2 then jsonb_build_object('body_html', v.body_html, 'mjml', v.mjml, 'body_text', v.body_text,
                                                                   'layout', v.layout) else '{}' end,
               'compiled_html', case when c.id = $2 and v.mjml is not null then (
                   select n.body_html from contents n where n.tenant_id = v.tenant_id and n.id = v.content_id) end
           ) order by v.variant), '[]') as variants
    from campaign_variants v
    where v.tenant_id = c.tenant_id and v.campaign_id = c.id
) v
cross join lateral (select campaign_status(c, (select preflight_keys())) as status) s
where c.tenant_id = $1
  and ($2::uuid is null or c.id = $2)
  and ($3::text is null or c.status = case $3 when 'preflight' then 'draft' else $3 end and s.status = $3)
  and ($4::timestamptz is null or (c.created_at, c.id) < ($4, $5::uuid))
order by c.created_at desc, c.id desc
limit $6
