//! Occurrences that no writer notes, because time or a rule brings them about: a date of a contact that has come (`field_date`), and a contact
//! that is in a segment and was not (`segment_entered`). The sweep looks every few minutes; the key of an occurrence makes it count once.

use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Datelike, Days, NaiveDate, NaiveTime, TimeDelta, Utc};
use chrono_tz::Tz;
use runner::{StageError, Sweep, SweepSchedule};
use schemas::delay;
use segments::{CompiledSegment, SegmentError};
use serde::Deserialize;
use serde_json::Value;
use sqlx::{PgConnection, PgPool, Postgres, QueryBuilder, types::Json};
use uuid::Uuid;

/// How late a date may become known, or its sequence active, and still start it.
const LATE_MAX: TimeDelta = TimeDelta::days(1);
/// Days looked back over at most, after the stage was down.
const DAYS_MAX: usize = 400;
/// True while a trigger is due: the condition of `triggers_due.sql` without its order, so that the first one found answers.
const HAS_DUE: &str = "exists (select from sequences s
    where s.trigger_type in ('field_date', 'segment_entered') and s.trigger_config is not null and s.status = 'active'
      and (s.triggers_tried_at is null
           or s.triggers_tried_at not between now() - interval '5 minutes' and now() + interval '1 minute'))";

/// The sweep. Any number of processes may run it: a sequence is looked at by one of them.
pub(crate) struct Occurrences {
    pub(crate) pool: PgPool,
    /// How long a statement of a look may take.
    pub(crate) look_max: Duration,
}

#[async_trait]
impl Sweep for Occurrences {
    fn schedule(&self) -> SweepSchedule {
        SweepSchedule::every("find_occurrences", Duration::from_secs(1)).when(HAS_DUE)
    }

    /// Looks at one trigger of each of some tenants: one that has many keeps no other waiting.
    async fn sweep(&self) -> Result<u64, StageError> {
        let mut looks = 0;
        for due in sqlx::query_file!("queries/triggers_due.sql").fetch_all(&self.pool).await? {
            let Some(sequence) = self.claim(due.tenant_id, due.id, due.triggers_tried_at).await? else { continue };
            looks += 1;
            // It costs its own sequence only, which is tried again in five minutes.
            if let Err(error) = self.look_at(&sequence).await {
                let error = runtime::db::describe(&error);
                tracing::error!(sequence_id = %sequence.id, error, "the trigger of a sequence cannot be evaluated");
            }
        }
        Ok(looks)
    }
}

/// A sequence whose trigger is looked at.
#[derive(Debug)]
struct Triggered {
    tenant_id: Uuid,
    id: Uuid,
    trigger_type: String,
    config: Json<Value>,
    activated_at: Option<DateTime<Utc>>,
    enroll_from: Option<DateTime<Utc>>,
    enroll_until: Option<DateTime<Utc>>,
    swept_at: Option<DateTime<Utc>>,
    updated_at: DateTime<Utc>,
    tenant_timezone: String,
}

impl Triggered {
    /// Between which times a date's moment starts it: after the first and not after the second. The sequence says from when on and before
    /// when, which is a microsecond earlier.
    fn date_window(&self, now: DateTime<Utc>) -> (DateTime<Utc>, DateTime<Utc>) {
        let [opens, closes] =
            [self.enroll_from, self.enroll_until].map(|at| at.map(|at| at - TimeDelta::microseconds(1)));
        let from = [self.activated_at, opens].into_iter().flatten();
        let from = from.chain([self.swept_at.unwrap_or(now) - LATE_MAX]).max().unwrap_or(now);
        (from, closes.map_or(now, |closes| closes.min(now)))
    }
}

impl Occurrences {
    /// Notes the try before the look: one whose look fails, or ends its process, keeps no other waiting. `None`: it was tried or changed
    /// since it was found due, or somebody holds its row.
    async fn claim(&self, tenant: Uuid, id: Uuid, tried_at: Option<DateTime<Utc>>) -> sqlx::Result<Option<Triggered>> {
        sqlx::query_as!(
            Triggered,
            r#"with due as (
                   select s.tenant_id, s.id from sequences s
                   where s.tenant_id = $1 and s.id = $2 and s.trigger_config is not null and s.status = 'active'
                     and s.triggers_tried_at is not distinct from $3
                   for no key update of s skip locked
               )
               update sequences s set triggers_tried_at = now()
               from due d join tenants t on t.id = d.tenant_id
               where s.tenant_id = d.tenant_id and s.id = d.id
               returning s.tenant_id, s.id, s.trigger_type, s.trigger_config as "config!: Json<Value>", s.activated_at, s.enroll_from,
                         s.enroll_until, s.triggers_swept_at as swept_at, s.updated_at, t.timezone as tenant_timezone"#,
            tenant,
            id,
            tried_at,
        )
        .fetch_optional(&self.pool)
        .await
    }

    /// Notes the occurrences of a sequence's trigger. A sequence that is changed meanwhile is left as it was, and looked at as it is then.
    async fn look_at(&self, sequence: &Triggered) -> sqlx::Result<()> {
        let mut tx = self.pool.begin().await?;
        // Not a lock of its row, which enrollments wait for. The second one keeps imports away from segments (`pass_over_segments`), and no
        // other look.
        let is_ours = sqlx::query_scalar!(
            r#"select pg_try_advisory_xact_lock(hashtextextended('trigger ' || $1::uuid, 0))
                      and ($3 or pg_try_advisory_xact_lock_shared(hashtextextended('triggers ' || $2::uuid, 0))) as "is_ours!""#,
            sequence.id,
            sequence.tenant_id,
            sequence.trigger_type != "segment_entered",
        );
        if !is_ours.fetch_one(&mut *tx).await? {
            return Ok(());
        }
        // The time after the locks, which an import may have held until now: what it passes over counts for this look and for no other.
        let now = sqlx::query!(
            r#"select clock_timestamp() as "now!", set_config('statement_timeout', $1, true)"#,
            self.look_max.as_millis().to_string()
        );
        let now = now.fetch_one(&mut *tx).await?.now;
        match sequence.trigger_type.as_str() {
            "field_date" => note_dates(&mut tx, sequence, now).await?,
            _ => note_entries(&mut tx, sequence).await?,
        }
        let stamped = sqlx::query!(
            "update sequences set triggers_swept_at = $3
             where tenant_id = $1 and id = $2 and updated_at = $4 and triggers_swept_at is not distinct from $5",
            sequence.tenant_id,
            sequence.id,
            now,
            sequence.updated_at,
            sequence.swept_at,
        )
        .execute(&mut *tx)
        .await?;
        if stamped.rows_affected() == 0 {
            return tx.rollback().await;
        }
        tx.commit().await
    }
}

/// The config of `field_date`, as the API stores it.
#[derive(Debug, Clone, Deserialize)]
struct FieldDate {
    field: String,
    offset_days: i64,
    yearly: bool,
    at: NaiveTime,
}

/// Notes the contacts whose moment has come since the last look, or a day before it: a date that became known meanwhile counts.
async fn note_dates(db: &mut PgConnection, sequence: &Triggered, now: DateTime<Utc>) -> sqlx::Result<()> {
    let config = serde_json::from_value::<FieldDate>(sequence.config.0.clone());
    let config = config.map_err(|error| sqlx::Error::Decode(error.into()))?;
    let (from, until) = sequence.date_window(now);
    let zones = sqlx::query_scalar!(
        r#"select distinct coalesce(timezone, '') as "zone!" from contacts where tenant_id = $1 and status = 'active' and fields ? $2
               and not exists (select from removed_fields where tenant_id = $1 and key = $2)"#,
        sequence.tenant_id,
        config.field,
    )
    .fetch_all(&mut *db)
    .await?;
    let (mut of_zones, mut texts, mut days) = (Vec::new(), Vec::new(), Vec::new());
    for zone in &zones {
        for (text, day) in config.dates(delay::zone(Some(zone), &sequence.tenant_timezone), from, until) {
            of_zones.push(zone.as_str());
            texts.push(text);
            days.push(day.to_string());
        }
    }
    sqlx::query!(
        "insert into trigger_occurrences (tenant_id, sequence_id, contact_id, occurrence)
         select $1, $2, c.id, $3::text || ' ' || w.day
         from contacts c
         join unnest($4::text[], $5::text[], $6::text[]) as w (zone, date, day)
             on w.zone = coalesce(c.timezone, '')
             and w.date = case when $7 then substr(c.fields ->> $3, 5, 6) else left(c.fields ->> $3, 10) end
         where c.tenant_id = $1 and c.status = 'active' and c.fields ? $3 and left(c.fields ->> $3, 10) <= w.day
         on conflict do nothing",
        sequence.tenant_id,
        sequence.id,
        config.field,
        &of_zones as &[&str],
        &texts,
        &days,
        config.yearly,
    )
    .execute(db)
    .await
    .map(drop)
}

impl FieldDate {
    /// The dates of the field whose moment in this zone lies after `from` and not after `until`: as the text of the field shows them (of a
    /// yearly one month and day), and as days. In a year without the 29th of February, its yearly moment is that of the 28th.
    fn dates(&self, zone: Tz, from: DateTime<Utc>, until: DateTime<Utc>) -> Vec<(String, NaiveDate)> {
        let first = from.with_timezone(&zone).date_naive();
        let mut dates = Vec::new();
        for day in first.iter_days().take(DAYS_MAX) {
            let moment = delay::local_after(from, day.and_time(self.at), zone);
            if moment > until {
                break;
            }
            let distance = Days::new(self.offset_days.unsigned_abs());
            let date =
                if self.offset_days > 0 { day.checked_sub_days(distance) } else { day.checked_add_days(distance) };
            let Some(date) = date.filter(|_| moment > from) else { continue };
            if !self.yearly {
                dates.push((date.to_string(), date));
                continue;
            }
            dates.push((date.format("-%m-%d").to_string(), date));
            if (date.month(), date.day()) == (2, 28) && !date.leap_year() {
                dates.push(("-02-29".to_owned(), date));
            }
        }
        dates
    }
}

/// Notes the contacts that are in the segment and were not at the last look, but for those that were passed over since, and forgets those
/// that are not in it any more. The first look only sees who is in it.
async fn note_entries(db: &mut PgConnection, sequence: &Triggered) -> sqlx::Result<()> {
    let Some(segment) = sequence.config.0.get("segment_id").and_then(Value::as_str).and_then(|id| id.parse().ok())
    else {
        return Ok(());
    };
    let rule = match segments::load(&mut *db, sequence.tenant_id, segment).await {
        Ok(rule) => rule,
        Err(SegmentError::NotFound(_)) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut query = QueryBuilder::new("");
    push_entries(&mut query, &rule, sequence);
    query.build().execute(db).await.map(drop)
}

/// The statement of [`note_entries`]. It compares contacts by set operations, which take one pass: a rule with several conditions seems to
/// find one contact, and a join that is planned for one reads all of the other side for each.
fn push_entries(query: &mut QueryBuilder<Postgres>, rule: &CompiledSegment, sequence: &Triggered) {
    query.push("with inside as materialized (select c.id from ");
    rule.push(query, sequence.tenant_id);
    // A contact that mail made enters when it has agreed to something: a start before that would mail nothing, and be its only one.
    query.push(" and (not is_known_from_mail(c.source) or c.marketing_status <> 'pending')");
    query.push("), gone as (delete from segment_entries where ctid = any (array(select max(w.place) from (");
    query.push("select e.contact_id, e.ctid as place from segment_entries e where e.tenant_id = ");
    query.push_bind(sequence.tenant_id).push(" and e.sequence_id = ").push_bind(sequence.id);
    query.push(" union all select i.id, null from inside i");
    query.push(") w group by w.contact_id having count(*) = count(w.place)))");
    query.push("), entered as (insert into segment_entries (tenant_id, sequence_id, contact_id) select ");
    query.push_bind(sequence.tenant_id).push(", ").push_bind(sequence.id);
    query.push(", i.id from inside i on conflict do nothing returning contact_id)");
    query.push(" insert into trigger_occurrences (tenant_id, sequence_id, contact_id, occurrence) select ");
    query.push_bind(sequence.tenant_id).push(", ").push_bind(sequence.id);
    query.push(", n.contact_id, gen_random_uuid()::text from (select contact_id from entered");
    query.push(" except select p.contact_id from segments_passed p where p.tenant_id = ").push_bind(sequence.tenant_id);
    query.push(" and p.passed_at > ").push_bind(sequence.swept_at).push(") n where ");
    query.push_bind(sequence.swept_at.is_some());
    query.push(" and now() >= coalesce(").push_bind(sequence.enroll_from).push(", '-infinity')");
    query.push(" and now() < coalesce(").push_bind(sequence.enroll_until).push(", 'infinity')");
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;
    use stage_rig::{Rig, rows_in_vain};

    fn at(text: &str) -> DateTime<Utc> {
        DateTime::parse_from_rfc3339(text).unwrap().to_utc()
    }

    fn triggered(trigger_type: &str, config: Value) -> Triggered {
        Triggered {
            tenant_id: Uuid::nil(),
            id: Uuid::nil(),
            trigger_type: trigger_type.to_owned(),
            config: Json(config),
            activated_at: None,
            enroll_from: None,
            enroll_until: None,
            swept_at: None,
            updated_at: Utc::now(),
            tenant_timezone: "UTC".to_owned(),
        }
    }

    #[rstest]
    #[case::it_opens_then("2026-05-01T09:00:00Z", "2026-05-02T00:00:00Z", &["2026-05-01"])]
    #[case::it_closes_then("2026-04-30T12:00:00Z", "2026-05-01T09:00:00Z", &[])]
    fn a_date_at_the_first_moment_of_the_window_counts(
        #[case] enroll_from: &str,
        #[case] enroll_until: &str,
        #[case] expected: &[&str],
    ) {
        let nine = NaiveTime::from_hms_opt(9, 0, 0).unwrap();
        let config = FieldDate { field: "renewal".to_owned(), offset_days: 0, yearly: false, at: nine };
        let (enroll_from, enroll_until) = (Some(at(enroll_from)), Some(at(enroll_until)));
        let sequence = Triggered { enroll_from, enroll_until, ..triggered("field_date", json!({})) };
        let (from, until) = sequence.date_window(at("2026-05-01T12:00:00Z"));
        let found = config.dates(delay::zone(None, "UTC"), from, until);
        assert_eq!(found.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>(), expected);
    }

    #[rstest]
    // On the day, at nine in the zone: not before, and not again.
    #[case("Europe/Berlin", 0, false, "2026-05-01T06:59:59Z", "2026-05-01T07:00:00Z", &["2026-05-01"])]
    #[case("Europe/Berlin", 0, false, "2026-05-01T07:00:00Z", "2026-05-01T12:00:00Z", &[])]
    #[case("America/New_York", 0, false, "2026-05-01T00:00:00Z", "2026-05-01T12:59:59Z", &[])]
    // Seven days before is a date to come, three days after one that was.
    #[case("UTC", -7, false, "2026-05-01T00:00:00Z", "2026-05-01T09:00:00Z", &["2026-05-08"])]
    #[case("UTC", 3, false, "2026-05-01T00:00:00Z", "2026-05-01T09:00:00Z", &["2026-04-28"])]
    // After two days down, each of them.
    #[case("UTC", 0, false, "2026-05-01T10:00:00Z", "2026-05-03T09:00:00Z", &["2026-05-02", "2026-05-03"])]
    #[case("UTC", 0, true, "2026-05-01T00:00:00Z", "2026-05-01T09:00:00Z", &["-05-01"])]
    #[case("UTC", 0, true, "2027-02-28T00:00:00Z", "2027-02-28T09:00:00Z", &["-02-28", "-02-29"])]
    #[case("UTC", 0, true, "2028-02-28T00:00:00Z", "2028-02-28T09:00:00Z", &["-02-28"])]
    // The clock leaves out every nine o'clock of this day: its first moment is that of the next.
    #[case("Pacific/Apia", 0, false, "2011-12-30T09:00:00Z", "2011-12-30T10:00:00Z", &["2011-12-30"])]
    fn a_date_comes_at_its_hour_in_the_zone(
        #[case] zone: &str,
        #[case] offset_days: i64,
        #[case] yearly: bool,
        #[case] from: &str,
        #[case] until: &str,
        #[case] expected: &[&str],
    ) {
        let nine = NaiveTime::from_hms_opt(9, 0, 0).unwrap();
        let config = FieldDate { field: "renewal".to_owned(), offset_days, yearly, at: nine };
        let found = config.dates(delay::zone(Some(zone), "UTC"), at(from), at(until));
        assert_eq!(found.iter().map(|(text, _)| text.as_str()).collect::<Vec<_>>(), expected);
    }

    #[tokio::test]
    async fn a_look_at_a_segment_reads_each_contact_once() {
        let rig = Rig::new().await;
        let tenant = rig.tenant().await;
        rig.people(&tenant, 3_000).await;
        // To the planner this tenant has nobody, and the rule finds one contact.
        sqlx::raw_sql(
            "insert into segments_passed select gen_random_uuid(), gen_random_uuid(), now() from generate_series(1, 5000);
             insert into segment_entries select gen_random_uuid(), gen_random_uuid(), gen_random_uuid() from generate_series(1, 5000);
             analyze segments_passed;
             analyze segment_entries;
             update contacts set company = 'Acme', first_name = 'Ann';
             insert into segments_passed select tenant_id, id, now() from contacts;",
        )
        .execute(&PgPool::connect(&rig.database.url()).await.unwrap())
        .await
        .unwrap();
        let is = |field: &str, value: &str| json!({"field": field, "op": "eq", "value": value});
        sqlx::query("insert into segments (tenant_id, id, name, rule) values ($1, $1, 'Acme', $2)")
            .bind(tenant.id)
            .bind(json!({"all": [is("company", "Acme"), is("first_name", "Ann")]}))
            .execute(&rig.pool)
            .await
            .unwrap();
        let rule = segments::load(&mut rig.pool.acquire().await.unwrap(), tenant.id, tenant.id).await.unwrap();
        let sequence = Triggered {
            tenant_id: tenant.id,
            id: tenant.id,
            swept_at: Some(Utc::now() - TimeDelta::hours(1)),
            ..triggered("segment_entered", json!({"segment_id": tenant.id}))
        };
        // They enter, and at the second look they are in it.
        for _ in 0..2 {
            let mut query = QueryBuilder::new("explain (analyze, format json) ");
            push_entries(&mut query, &rule, &sequence);
            let plan: Value = query.build_query_scalar().fetch_one(&rig.pool).await.unwrap();
            let in_vain = rows_in_vain(&plan);
            assert!(in_vain < 10_000.0, "{in_vain} rows were looked at in vain: {plan:#}");
            let entered = "select count(*) from segment_entries e join contacts c on c.id = e.contact_id";
            assert_eq!(rig.number(entered).await, 3_000);
        }
        assert_eq!(rig.number("select count(*) from trigger_occurrences").await, 0, "they were passed over");
    }

    #[test]
    fn a_time_that_the_clock_leaves_out_comes_after_the_gap() {
        let half_past_two = NaiveTime::from_hms_opt(2, 30, 0).unwrap();
        let config = FieldDate { field: "f".to_owned(), offset_days: 0, yearly: false, at: half_past_two };
        let berlin = delay::zone(Some("Europe/Berlin"), "UTC");
        let found = |from, until| config.dates(berlin, at(from), at(until)).len();
        assert_eq!(found("2026-03-29T00:00:00Z", "2026-03-29T00:59:59Z"), 0);
        assert_eq!(found("2026-03-29T00:59:59Z", "2026-03-29T01:00:00Z"), 1);
    }
}
