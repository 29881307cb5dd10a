//! `GET /v1/analytics/tags`: statistics of transactional and one-off mail by the tags that its requests gave it.

use chrono::Utc;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    store::{self, TAGS},
    totals::{DELIVERED_NOTE, MessageTotals, OPENS_NOTE, RATES_NOTE, Rates, UNTRACKED_NOTE},
    window::{HourWindow, ReportWindow},
};
use crate::{
    api::{campaigns::store::tenant_zone, mail_options::TAG_MAX},
    pipeline::{
        ApiReply, Faults, RequestContext,
        error::ApiError,
        types::{Name, counts},
    },
};

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct GetTagAnalytics {
    #[schemars(extend("format" = "date-time"))]
    from: Option<String>,
    #[schemars(extend("format" = "date-time"))]
    to: Option<String>,
    /// Reports this tag only.
    #[schemars(with = "Option<Name<TAG_MAX>>")]
    tag: Option<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(transform = counts)]
pub(super) struct TagAnalytics {
    window: ReportWindow,
    /// How many tags the mail of the window has; of one that is asked for, 1 or 0.
    tag_count: i64,
    /// The most used first; none without mail.
    #[schemars(length(max = TAGS))]
    tags: Vec<TagTotals>,
    notes: Vec<String>,
}

#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TagTotals {
    pub(super) tag: String,
    #[serde(flatten)]
    pub(super) totals: MessageTotals,
    pub(super) rates: Rates,
}

pub(super) async fn tags(ctx: &mut RequestContext, query: GetTagAnalytics) -> Result<ApiReply, ApiError> {
    let tenant = ctx.tenant;
    let zone = tenant_zone(ctx.db(), tenant).await?;
    let mut faults = Faults::default();
    let window = HourWindow::new(query.from.as_deref(), query.to.as_deref(), zone, Utc::now(), &mut faults);
    if let Some(tag) = &query.tag {
        faults.title("tag", tag, TAG_MAX);
    }
    faults.finish()?;
    let (tag_count, tags) = store::tags(ctx.db(), tenant, &window, query.tag.as_deref()).await?;
    ApiReply::ok(&TagAnalytics {
        window: (&window).into(),
        tag_count,
        tags,
        notes: [OPENS_NOTE, UNTRACKED_NOTE, DELIVERED_NOTE, RATES_NOTE, TAGS_NOTE].map(str::to_owned).to_vec(),
    })
}

/// What is counted.
const TAGS_NOTE: &str = "Mail counts by when it was due, with all that has become of it until now, and for each of its tags. total has \
     also what is not decided yet. Mail whose request is not kept any more, or was erased with its contact, is in no tag.";
