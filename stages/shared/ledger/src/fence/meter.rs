//! The send quota at the fence: campaigns and one-off messages pass as long as quota remains. Transactional mail and sequences count and
//! always pass: a campaign cannot use up the password resets.

use std::collections::{BTreeSet, HashMap};

use chrono::{NaiveDate, Utc};
use schemas::{SendState, SkipReason};
use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    Change,
    commit::Undecided,
    sql::{self, FenceBatch},
};
use crate::counters::UsageTotals;
use crate::quota::{self, QuotaDefaults};

/// The shard of tenants with a limit: their commits come one after the other anyway, and one row a day is quick to sum.
const LIMITED: i16 = -1;

/// What a limit leaves to the fences of one commit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Remaining {
    before: i64,
    left: i64,
}

impl Remaining {
    /// So many are left before this commit.
    pub fn new(left: i64) -> Self {
        Self { before: left, left }
    }

    /// Takes one. False: nothing was left before this commit.
    ///
    /// # Errors
    /// [`Undecided::LimitReached`] if fences of this commit have taken the rest. Not all of them need pass: of two workers' fences of one
    /// send, one does.
    pub fn take(&mut self) -> Result<bool, Undecided> {
        if self.left > 0 {
            self.left -= 1;
            return Ok(true);
        }
        if self.before > 0 { Err(Undecided::LimitReached) } else { Ok(false) }
    }
}

/// Counts the fences of one commit. A tenant with a limit stays locked until the commit is done.
#[derive(Debug, Default)]
pub(super) struct Meter {
    today: NaiveDate,
    /// Mails left, of tenants with a limit.
    left: HashMap<Uuid, Remaining>,
}

impl Meter {
    /// Locks the tenants of these batches that have a limit, and those with a frequency cap (`capped`); reads what the former have left.
    pub async fn open<'a>(
        db: &mut PgConnection,
        batches: impl Iterator<Item = &'a FenceBatch>,
        mut capped: BTreeSet<Uuid>,
        defaults: &QuotaDefaults,
    ) -> sqlx::Result<Self> {
        let mut meter = Self { today: Utc::now().date_naive(), left: HashMap::new() };
        let mut limited = BTreeSet::new();
        for batch in batches {
            meter.today = batch.read_at.date_naive();
            if defaults.limits(batch.monthly, batch.daily) != (None, None) {
                limited.insert(batch.tenant_id);
            }
        }
        capped.extend(&limited);
        if !capped.is_empty() {
            sql::lock_tenants(db, &capped.into_iter().collect::<Vec<Uuid>>()).await?;
        }
        if limited.is_empty() {
            return Ok(meter);
        }
        // A statement of its own after the lock: it sees the commit of the previous lock holder.
        let limited: Vec<Uuid> = limited.into_iter().collect();
        for (tenant, usage) in quota::quota_usages(db, &limited, defaults).await? {
            // Its limit may have been lifted meanwhile.
            if let Some(left) = usage.left().remaining {
                meter.left.insert(tenant, Remaining::new(left));
            }
        }
        Ok(meter)
    }

    /// The day fences of this commit count on.
    pub fn today(&self) -> NaiveDate {
        self.today
    }

    /// Lets a fence pass, or turns it into a skip if nothing is left. A send that already counts always passes, and so does mail that the
    /// quota does not stop.
    ///
    /// # Errors
    /// [`Undecided::LimitReached`].
    pub fn admit(&mut self, change: Change) -> Result<Change, Undecided> {
        if change.to != SendState::Fenced || change.metered() == 0 {
            return Ok(change);
        }
        let taken = self.left.get_mut(&change.send.batch.tenant_id).map_or(Ok(true), Remaining::take);
        if !quota::stops(change.send.batch.kind) {
            return Ok(change);
        }
        Ok(if taken? { change } else { Change::skipped(change.send, SkipReason::QuotaExceeded) })
    }

    /// The usage of the changes that took place; negative for fences that are taken back.
    pub fn usage<'a>(&self, moved: impl Iterator<Item = &'a Change>, shard: i16) -> UsageTotals {
        let mut usage = UsageTotals::new();
        for change in moved {
            let count = change.metered();
            if count == 0 {
                continue;
            }
            let tenant = change.send.batch.tenant_id;
            let day = if count > 0 { Some(self.today) } else { change.send.metered_on };
            let shard = if self.left.contains_key(&tenant) { LIMITED } else { shard };
            *usage.entry((tenant, day, shard)).or_default() += count;
        }
        usage.retain(|_, count| *count != 0);
        usage
    }
}
