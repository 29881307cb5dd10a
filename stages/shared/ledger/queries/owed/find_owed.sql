-- The facts of the batches of these sends that decide whether and how the sends are sent, and which of the sends are owed: queued, or deferred
-- and due, since when. Read without a lock: the fence reads the facts again, and compares attempts and state. $1 tenants, $2 batches, $3 sends,
-- $4 their month. From key to key: primary keys, the sends one by one (`offset 0`: without statistics the planner compares all with all).
select b.tenant_id as "tenant_id!", b.id as "id!", b.kind as "kind!: MessageKind", b.lane as "lane!: Lane",
       b.classification as "classification!: Classification", b.created_at as "created_at!", b.due_at as "due_at?",
       c.status as "campaign_status?: CampaignStatus", coalesce(c.paused, false) as "paused!",
       case when c.closes_at <= now() then c.on_miss end as "missed?: OnMiss",
       t.status = 'active' as "tenant_active!", t.paused_at is not null as "tenant_paused!", t.environment as "environment!: Environment",
       t.quiet_from as "quiet_from?", t.quiet_to as "quiet_to?",
       t.quiet_for as "quiet_for?", t.timezone as "timezone!", s.status = 'active' as "sender_active!", d.status as "domain_status!: DomainStatus", w.domain_id as "warming?",
       exists (select from fallback_connections p where p.tenant_id = b.tenant_id) as "has_fallback!",
       o.ids as "send_ids!", o.contacts as "contact_ids!", o.attempts as "attempts!", o.doubtful as "doubtful!", o.deferred as "deferred!",
       o.due_at as "sends_due_at!: Vec<Option<DateTime<Utc>>>", o.metered_on as "metered_on!: Vec<Option<NaiveDate>>",
       o.routes as "routes!: Vec<Option<Uuid>>", o.providers as "providers!: Vec<Option<String>>"
from (
    select u.tenant_id, u.batch_id, array_agg(u.send_id) as sends
    from unnest($1::uuid[], $2::uuid[], $3::uuid[]) as u (tenant_id, batch_id, send_id)
    group by u.tenant_id, u.batch_id
) u
join batches b on b.tenant_id = u.tenant_id and b.id = u.batch_id
join tenants t on t.id = b.tenant_id
join senders s on s.tenant_id = b.tenant_id and s.id = b.sender_id
join domains d on d.tenant_id = s.tenant_id and d.id = s.domain_id
left join domain_warmups w on w.tenant_id = d.tenant_id and w.domain_id = d.id and w.is_on
left join campaigns c on c.tenant_id = b.tenant_id and c.id = b.campaign_id
cross join lateral (
    select coalesce(array_agg(s.id), '{}') as ids, coalesce(array_agg(s.contact_id), '{}') as contacts,
           coalesce(array_agg(s.attempts), '{}') as attempts, coalesce(array_agg(s.doubtful), '{}') as doubtful,
           coalesce(array_agg(s.state = 'deferred'), '{}') as deferred,
           coalesce(array_agg(case when s.state = 'deferred' then s.next_attempt_at end), '{}') as due_at,
           coalesce(array_agg((s.fenced_at at time zone 'utc')::date), '{}') as metered_on, coalesce(array_agg(s.route), '{}') as routes,
           coalesce(array_agg(s.provider), '{}') as providers
    from unnest(u.sends) as k (id)
    cross join lateral (
        select s.id, s.contact_id, s.attempts, s.doubtful, s.state, s.next_attempt_at, s.fenced_at, s.route, s.provider
        from sends s
        where s.tenant_id = u.tenant_id and s.id = k.id and s.month = $4
          and (s.state = 'queued' or s.state = 'deferred' and s.next_attempt_at <= now())
        offset 0
    ) s
) o
