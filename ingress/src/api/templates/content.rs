//! What a message says, and whether it can be sent. A row of `contents` never changes; a change makes a new one.

use std::collections::HashSet;

use schemars::JsonSchema;
use schemas::text::TextError;
use serde::Serialize;
use sqlx::PgConnection;
use templates::{CheckedTemplate, FaultCode, KnownFields, Part, TemplateFault, TemplateKind, TemplateSource};
use uuid::Uuid;

use crate::{
    api::{fields::definitions, snippets::store as snippets},
    pipeline::{
        Patch, RequestContext,
        error::{ApiError, FieldFault},
        validate::{Faults, LINE_MAX},
    },
};

/// The parts of a message, as their author wrote them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Parts")]
pub(crate) struct TemplateParts {
    pub(crate) subject: String,
    pub(crate) preheader: Option<String>,
    pub(crate) body_html: String,
    pub(crate) body_text: Option<String>,
}

impl TemplateParts {
    /// The parts as a template of a kind.
    pub(crate) fn source(&self, kind: TemplateKind) -> TemplateSource {
        TemplateSource {
            subject: self.subject.clone(),
            preheader: self.preheader.clone(),
            body_html: self.body_html.clone(),
            body_text: self.body_text.clone(),
            kind,
        }
    }

    /// Rules that need no parser. Subject and preheader are lines of a header and of a preview.
    pub(crate) fn check_lines(&self, faults: &mut Faults) {
        faults.one_line("subject", &self.subject, LINE_MAX);
        check_preheader(self.preheader.as_deref(), faults);
    }
}

/// Checks the text beside the subject. It is padded with characters that show nothing, so only line breaks are refused.
pub(super) fn check_preheader(preheader: Option<&str>, faults: &mut Faults) {
    if let Some(preheader) = preheader {
        faults.optional("preheader", Some(preheader), LINE_MAX);
        let plain = !preheader.chars().any(char::is_control);
        faults.require(plain, "preheader", "control_character", &TextError::Control.to_string());
    }
}

/// The HTML and the MJML of a body after a change: giving one takes the other's place.
pub(crate) fn either_body(
    old: (Option<String>, Option<String>),
    html: Patch<String>,
    mjml: Patch<String>,
) -> (Option<String>, Option<String>) {
    let (gives_html, gives_mjml) = (html.value().is_some(), mjml.value().is_some());
    let kept = |old: Option<String>, is_replaced: bool| old.filter(|_| !is_replaced);
    (html.applied_to(kept(old.0, gives_mjml)), mjml.applied_to(kept(old.1, gives_html)))
}

/// The kind with this word.
pub(crate) fn kind(text: &str) -> TemplateKind {
    match text {
        "transactional" => TemplateKind::Transactional,
        "sequence" => TemplateKind::Sequence,
        _ => TemplateKind::Marketing,
    }
}

/// The contact fields the tenant has defined, which templates may use. None of them is removed before this transaction ends.
pub(crate) async fn known_fields(db: &mut PgConnection, tenant: Uuid) -> sqlx::Result<KnownFields> {
    let keys = definitions::read_for_naming(db, tenant).await?.into_keys();
    Ok(KnownFields { custom: keys.collect::<HashSet<_>>() })
}

/// Tells these fields from those of another moment: a text that was checked before one was removed is checked again.
pub(super) fn fields_label(known: &KnownFields) -> String {
    let mut keys: Vec<&str> = known.custom.iter().map(String::as_str).collect();
    keys.sort_unstable();
    keys.join(" ")
}

/// Checks all parts and returns the merge fields they use, and warnings. A fault has the path of its part, or `path` if the caller named a template
/// instead. It runs [without a connection](RequestContext::run_blocking).
///
/// # Errors
/// 400 `validation_failed` with every fault, its line and column.
pub(crate) async fn check(
    ctx: &mut RequestContext,
    parts: &TemplateParts,
    kind: TemplateKind,
    path: Option<&'static str>,
) -> Result<CheckedTemplate, ApiError> {
    let tenant = ctx.tenant;
    let known = known_fields(ctx.db(), tenant).await?;
    let source = parts.source(kind);
    let texts = [Some(&parts.subject), parts.preheader.as_ref(), Some(&parts.body_html), parts.body_text.as_ref()];
    let texts = snippets::label(&texts.map(|text| text.map(String::as_str)), &[]);
    let label = format!("{kind:?} {texts} {}", fields_label(&known));
    match ctx.run_blocking(label, move || templates::check(&source, &known))? {
        Ok(checked) => Ok(checked),
        Err(faults) => Err(refusal(&faults, path)),
    }
}

/// Something that is no fault of the content and still goes wrong in a mailbox.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct ContentWarning {
    /// `dead_link`, `dead_image`, `missing_alt`, or `html_clipped`: Gmail shows 102 KB of HTML.
    #[schemars(extend("enum" = ["dead_link", "dead_image", "missing_alt", "html_clipped"]))]
    code: &'static str,
    /// `body_html` (of MJML, what it was compiled to), or that of a campaign's variant.
    path: String,
    line: u32,
    column: u32,
    detail: String,
}

impl ContentWarning {
    /// The warning with what its path begins with.
    pub(crate) fn within(self, path: &str) -> Self {
        Self { path: format!("{path}.{}", self.path), ..self }
    }

    /// Warnings as callers see them.
    pub(crate) fn all(warnings: Vec<templates::TemplateWarning>) -> Vec<Self> {
        let shown = warnings.into_iter().map(|warning| Self {
            code: warning.code.as_str(),
            path: "body_html".to_owned(),
            line: warning.position.line,
            column: warning.position.column,
            detail: warning.detail,
        });
        shown.collect()
    }
}

/// The refusal of a text with these faults: 400, or 503 where only a busy machine explains one.
pub(crate) fn refused(faults: Vec<FieldFault>) -> ApiError {
    let is_late = faults.iter().any(|fault| fault.code == FaultCode::TimedOut.as_str());
    if is_late { ApiError::unavailable() } else { ApiError::validation(faults) }
}

/// Faults as callers see them: each with its part, line and column.
pub(crate) fn refusal(faults: &[TemplateFault], path: Option<&'static str>) -> ApiError {
    let fault = |fault: &TemplateFault| match path {
        Some(path) => FieldFault::new(path, fault.code.as_str(), format!("{} {}", fault.part, place(fault))),
        None => field_fault(fault, "body_html"),
    };
    refused(faults.iter().map(fault).collect())
}

/// A fault at the field it is in; `body` is the one with the body.
pub(crate) fn field_fault(fault: &TemplateFault, body: &'static str) -> FieldFault {
    let path = if fault.part == Part::BodyHtml { body } else { fault.part.as_str() };
    FieldFault::new(path, fault.code.as_str(), place(fault))
}

fn place(fault: &TemplateFault) -> String {
    format!("line {} column {}: {}", fault.line, fault.column, fault.detail)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_a_busy_machine_could_not_read_may_come_again() {
        let status = |code: FaultCode| {
            let fault =
                TemplateFault { part: Part::BodyHtml, line: 1, column: 1, code, detail: "took too long".to_owned() };
            refusal(&[fault], None).status
        };
        assert_eq!((status(FaultCode::TimedOut).as_u16(), status(FaultCode::TooComplex).as_u16()), (503, 400));
    }
}
