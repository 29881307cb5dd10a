-- Adds to the hour's totals. $1 outcomes, $2 counts, $3 shard.
insert into webhook_totals as t (hour, outcome, shard, count)
select date_trunc('hour', now(), 'UTC'), u.outcome, $3, u.count from unnest($1::text[], $2::bigint[]) as u (outcome, count)
order by u.outcome
on conflict (hour, outcome, shard) do update set count = t.count + excluded.count
