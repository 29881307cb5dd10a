//! Finding what a rule names, and putting other segments' rules in the place of their names.

use std::collections::HashMap;

use sqlx::PgConnection;
use uuid::Uuid;

use super::{
    SegmentError, SegmentFault,
    compile::CompiledSegment,
    field::{Definitions, definitions},
    rule::{Expanded, Rule, SegmentRef},
};

/// How deep segments may name segments.
const NESTING_MAX: usize = 5;
/// Leaves of a rule with those of all segments it names.
pub const EXPANDED_LEAVES_MAX: usize = 200;
/// Events among them: each reads a tenant's facts.
pub const EVENTS_MAX: usize = 10;
/// Segments whose rules [`find_beyond_limits`] holds at once, with all they name.
const CHECKED_AT_ONCE: usize = 50;

/// A stored segment, ready to be evaluated as its rule stands now.
pub async fn load(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<CompiledSegment, SegmentError> {
    match read(&mut *db, tenant, id).await {
        // The rule that was read named it still, and before it was looked for, both were changed: by now that can be seen.
        Err(SegmentError::NotFound(_) | SegmentError::Invalid(_)) => read(db, tenant, id).await,
        read => read,
    }
}

async fn read(db: &mut PgConnection, tenant: Uuid, id: Uuid) -> Result<CompiledSegment, SegmentError> {
    let row = sqlx::query_scalar!(
        "select rule from segments where tenant_id = $1 and id = $2 and deleted_at is null",
        tenant,
        id
    );
    let json = row.fetch_optional(&mut *db).await?.ok_or(SegmentError::NotFound("segment"))?;
    let definitions = definitions(&mut *db, tenant).await?;
    let rule = Rule::parse(&json, "rule", &definitions).map_err(SegmentError::Invalid)?;
    resolve(db, tenant, &rule, &definitions, Some(id)).await
}

/// Checks that everything a rule names is the tenant's and exists, and expands it. `own` is the segment whose rule this is, or
/// will be: one that names itself, however indirectly, is refused.
pub async fn resolve(
    db: &mut PgConnection,
    tenant: Uuid,
    rule: &Rule,
    definitions: &Definitions,
    own: Option<Uuid>,
) -> Result<CompiledSegment, SegmentError> {
    let known = load_rules(&mut *db, tenant, rule.segments(), EXPANDED_LEAVES_MAX, definitions).await?;
    let expanded = Expansion::new(&known, own).expand(rule)?;
    check_references(db, tenant, &expanded).await?;
    Ok(CompiledSegment::new(expanded))
}

/// The first of these stored segments whose rule does not stay within its limits with the segments it names, and what is wrong with it.
pub async fn find_beyond_limits(
    db: &mut PgConnection,
    tenant: Uuid,
    ids: &[Uuid],
) -> Result<Option<(Uuid, SegmentFault)>, SegmentError> {
    let definitions = definitions(&mut *db, tenant).await?;
    for ids in ids.chunks(CHECKED_AT_ONCE) {
        let most = EXPANDED_LEAVES_MAX * ids.len();
        let known = load_rules(&mut *db, tenant, ids.to_vec(), most, &definitions).await?;
        for id in ids {
            let rule = known.get(id).ok_or(SegmentError::NotFound("segment"))?;
            match Expansion::new(&known, Some(*id)).expand(rule) {
                Ok(_) => {}
                Err(SegmentError::Invalid(faults)) => return Ok(faults.into_iter().next().map(|fault| (*id, fault))),
                Err(error) => return Err(error),
            }
        }
    }
    Ok(None)
}

/// The rules of these segments, and of all that those name, level by level: at most so many of a level.
async fn load_rules(
    db: &mut PgConnection,
    tenant: Uuid,
    mut wanted: Vec<Uuid>,
    most: usize,
    definitions: &Definitions,
) -> Result<HashMap<Uuid, Rule>, SegmentError> {
    let mut known: HashMap<Uuid, Rule> = HashMap::new();
    // More levels than are allowed, so that the expansion meets them and can say so.
    for _ in 0..NESTING_MAX + 2 {
        if wanted.is_empty() {
            break;
        }
        // Each leads to a leaf of its own at least: no more are loaded than a rule within its limits names.
        if wanted.len() > most {
            return Err(SegmentError::Invalid(vec![too_many_leaves("rule")]));
        }
        let rows = sqlx::query!(
            "select id, rule from segments where tenant_id = $1 and id = any ($2) and deleted_at is null",
            tenant,
            &wanted
        )
        .fetch_all(&mut *db)
        .await?;
        let mut next = Vec::new();
        for row in rows {
            let rule = Rule::parse(&row.rule, "rule", definitions).map_err(SegmentError::Invalid)?;
            next.extend(rule.segments());
            known.insert(row.id, rule);
        }
        if wanted.iter().any(|id| !known.contains_key(id)) {
            return Err(SegmentError::NotFound("segment"));
        }
        next.sort_unstable();
        next.dedup();
        next.retain(|id| !known.contains_key(id));
        wanted = next;
    }
    Ok(known)
}

struct Expansion<'a> {
    known: &'a HashMap<Uuid, Rule>,
    own: Option<Uuid>,
    leaves: usize,
    events: usize,
    /// Where the outermost segment is named that is being expanded.
    path: Option<&'a str>,
    /// The segments that are being expanded, outermost first.
    within: Vec<Uuid>,
}

impl<'a> Expansion<'a> {
    fn new(known: &'a HashMap<Uuid, Rule>, own: Option<Uuid>) -> Self {
        Self { known, own, leaves: 0, events: 0, path: None, within: Vec::new() }
    }

    fn expand(&mut self, rule: &'a Rule) -> Result<Expanded, SegmentError> {
        Ok(match rule {
            Rule::All(parts) => Rule::All(self.each(parts)?),
            Rule::Any(parts) => Rule::Any(self.each(parts)?),
            Rule::Not(part) => Rule::Not(Box::new(self.expand(part)?)),
            Rule::Segment(named) => self.named(named)?,
            Rule::Field(test) => Rule::Field(self.counted(test, false)?),
            Rule::Member(membership) => Rule::Member(self.counted(membership, false)?),
            Rule::Event(event) => Rule::Event(self.counted(event, true)?),
        })
    }

    fn each(&mut self, parts: &'a [Rule]) -> Result<Vec<Expanded>, SegmentError> {
        parts.iter().map(|part| self.expand(part)).collect()
    }

    fn named(&mut self, named: &'a SegmentRef) -> Result<Expanded, SegmentError> {
        let outermost = self.path.is_none();
        if outermost {
            self.path = Some(&named.path);
        }
        if self.own == Some(named.id) || self.within.contains(&named.id) {
            return Err(self.fault("cycle", "leads back to the segment itself"));
        }
        if self.within.len() == NESTING_MAX {
            return Err(self.fault("too_deep", format!("segments may name segments at most {NESTING_MAX} deep")));
        }
        let rule = self.known.get(&named.id).ok_or(SegmentError::NotFound("segment"))?;
        self.within.push(named.id);
        let expanded = self.expand(rule)?;
        self.within.pop();
        if outermost {
            self.path = None;
        }
        Ok(expanded)
    }

    fn counted<T: Clone>(&mut self, leaf: &T, is_event: bool) -> Result<T, SegmentError> {
        self.leaves += 1;
        self.events += usize::from(is_event);
        if self.leaves > EXPANDED_LEAVES_MAX {
            return Err(SegmentError::Invalid(vec![too_many_leaves(self.path.unwrap_or("rule"))]));
        }
        if self.events > EVENTS_MAX {
            let detail = format!("has more than {EVENTS_MAX} events with those of the segments it names");
            return Err(self.fault("too_many", detail));
        }
        Ok(leaf.clone())
    }

    fn fault(&self, code: &'static str, detail: impl Into<String>) -> SegmentError {
        SegmentError::Invalid(vec![SegmentFault::new(self.path.unwrap_or("rule"), code, detail)])
    }
}

fn too_many_leaves(path: &str) -> SegmentFault {
    let detail = format!("has more than {EXPANDED_LEAVES_MAX} leaves with those of the segments it names");
    SegmentFault::new(path, "too_many", detail)
}

/// Lists, tags and campaigns that are named and not there.
async fn check_references(db: &mut PgConnection, tenant: Uuid, rule: &Expanded) -> Result<(), SegmentError> {
    let (mut lists, mut tags, mut campaigns) = (Vec::new(), Vec::new(), Vec::new());
    rule.each_leaf(&mut |leaf| match leaf {
        Rule::Member(membership) if membership.kind == "list" => lists.push(membership.id),
        Rule::Member(membership) => tags.push(membership.id),
        Rule::Event(event) => campaigns.extend(event.source.campaign_id()),
        _ => {}
    });
    if lists.is_empty() && tags.is_empty() && campaigns.is_empty() {
        return Ok(());
    }
    let missing = sqlx::query!(
        r#"select exists (select from unnest($2::uuid[]) w (id) where not exists (
                      select from audiences a where a.tenant_id = $1 and a.id = w.id and a.kind = 'list' and a.deleted_at is null)) as "list!",
                  exists (select from unnest($3::uuid[]) w (id) where not exists (
                      select from audiences a where a.tenant_id = $1 and a.id = w.id and a.kind = 'tag' and a.deleted_at is null)) as "tag!",
                  exists (select from unnest($4::uuid[]) w (id) where not exists (
                      select from campaigns c where c.tenant_id = $1 and c.id = w.id)) as "campaign!""#,
        tenant,
        &lists,
        &tags,
        &campaigns,
    )
    .fetch_one(db)
    .await?;
    for (is_missing, object) in [(missing.list, "list"), (missing.tag, "tag"), (missing.campaign, "campaign")] {
        if is_missing {
            return Err(SegmentError::NotFound(object));
        }
    }
    Ok(())
}
