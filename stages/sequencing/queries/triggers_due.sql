-- Sequences whose trigger is to be looked at: one of each of some tenants, the longest due. A try that lies ahead was noted by a clock that was
-- set back since.
select w.tenant_id, w.id, w.triggers_tried_at
from (
    select distinct on (s.tenant_id) s.tenant_id, s.id, s.triggers_tried_at
    from sequences s
    where s.trigger_type in ('field_date', 'segment_entered') and s.trigger_config is not null and s.status = 'active'
      and (s.triggers_tried_at is null
           or s.triggers_tried_at not between now() - interval '5 minutes' and now() + interval '1 minute')
    order by s.tenant_id, s.triggers_tried_at nulls first
) w
order by random() limit 20
