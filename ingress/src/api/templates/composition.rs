//! What an author writes, and what is sent of it: snippets put in, the layout around, MJML compiled. The content of a template's version,
//! or of a campaign with a body of its own, holds the result, so that it stays as it is when a snippet changes.

use schemars::JsonSchema;
use serde::Serialize;
use sqlx::PgConnection;
use templates::{
    CheckedTemplate, Composed, KnownFields, Layout, Part, TemplateFault, TemplateKind, check, check_liquid,
    compile_mjml, compose, mentioned_snippets,
};
use uuid::Uuid;

use super::content::{self, TemplateParts};
use crate::{
    api::snippets::{
        check_mentions,
        store::{self as snippets, SnippetText, StoredSnippet},
    },
    pipeline::{
        Faults, RequestContext,
        error::{ApiError, FieldFault},
    },
};

/// A template, or a campaign with a body of its own, as its author writes it: the body is HTML or MJML.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct WrittenTemplate {
    pub(crate) subject: String,
    pub(crate) preheader: Option<String>,
    pub(crate) body_html: Option<String>,
    pub(crate) mjml: Option<String>,
    pub(crate) body_text: Option<String>,
    pub(crate) layout: Option<String>,
}

/// What a version of a template keeps of its author's text, beside the content that is sent.
#[derive(Debug, Clone, Default, Serialize, JsonSchema)]
pub(crate) struct WrittenBodies {
    /// The layout around its body.
    pub(crate) layout: Option<String>,
    /// What `body_html` was made from.
    pub(crate) mjml: Option<String>,
    #[serde(skip)]
    pub(crate) html: Option<String>,
    #[serde(skip)]
    pub(crate) text: Option<String>,
}

/// What is made of a [`WrittenTemplate`].
#[derive(Debug, Clone)]
pub(crate) struct ComposedTemplate {
    pub(crate) parts: TemplateParts,
    pub(super) written: WrittenBodies,
    pub(crate) checked: CheckedTemplate,
    /// The snippets in it, with their versions.
    pub(super) snippets: Vec<(Uuid, i32)>,
}

/// A snippet or layout that a content holds.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HeldSnippet {
    snippet_id: Uuid,
    name: String,
    /// The version that it holds.
    #[schemars(range(min = 1, max = i32::MAX))]
    version: i32,
    /// The newest one.
    #[schemars(range(min = 1, max = i32::MAX))]
    current_version: i32,
}

impl HeldSnippet {
    /// True if there is a newer version.
    pub(super) fn is_outdated(&self) -> bool {
        self.version != self.current_version
    }
}

impl WrittenTemplate {
    /// A version as it was written.
    pub(super) fn of(parts: TemplateParts, written: WrittenBodies) -> Self {
        let html = written.html.unwrap_or(parts.body_html);
        Self {
            subject: parts.subject,
            preheader: parts.preheader,
            body_html: written.mjml.is_none().then_some(html),
            mjml: written.mjml,
            body_text: written.text.or(parts.body_text),
            layout: written.layout,
        }
    }

    /// Rules that need no parser: one body, and lines that are lines.
    pub(crate) fn check_lines(&self, faults: &mut Faults) {
        faults.one_line("subject", &self.subject, crate::pipeline::validate::LINE_MAX);
        content::check_preheader(self.preheader.as_deref(), faults);
        let bodies = [("body_html", &self.body_html), ("mjml", &self.mjml), ("body_text", &self.body_text)];
        bodies.into_iter().for_each(|(path, text)| check_mentions(faults, path, text.as_deref()));
        check_one_body(faults, "", self.body_html.as_deref(), self.mjml.as_deref(), true);
    }

    /// True if it may hold snippets, or has a layout.
    pub(crate) fn may_hold_snippets(&self) -> bool {
        !self.mentions().is_empty()
    }

    fn texts(&self) -> [Option<&str>; 6] {
        let Self { subject, preheader, body_html, mjml, body_text, layout } = self;
        let [preheader, html, mjml, text, layout] =
            [preheader, body_html, mjml, body_text, layout].map(Option::as_deref);
        [Some(subject), preheader, html, mjml, text, layout]
    }

    fn body(&self) -> (&str, SnippetText) {
        match &self.mjml {
            Some(mjml) => (mjml, SnippetText::Mjml),
            None => (self.body_html.as_deref().unwrap_or_default(), SnippetText::Html),
        }
    }

    fn text(&self) -> Option<&str> {
        self.body_text.as_deref().filter(|text| !text.trim().is_empty())
    }

    /// The names of snippets and layouts that it may need.
    fn mentions(&self) -> Vec<String> {
        let names = [self.body().0].into_iter().chain(self.text()).flat_map(mentioned_snippets);
        names.chain(self.layout.clone()).collect::<std::collections::BTreeSet<_>>().into_iter().collect()
    }
}

/// A body is HTML or MJML, and not blank. `prefix` stands before the names of the two fields.
pub(crate) fn check_one_body(
    faults: &mut Faults,
    prefix: &str,
    body_html: Option<&str>,
    mjml: Option<&str>,
    is_required: bool,
) {
    let mut fault =
        |field: &str, code: &'static str, detail: &str| faults.add(format!("{prefix}{field}"), code, detail);
    match (body_html, mjml) {
        (Some(_), Some(_)) => fault("mjml", "ambiguous", "give either body_html or mjml"),
        (None, None) if is_required => fault("body_html", "required", "give either body_html or mjml"),
        (Some(body), None) if body.trim().is_empty() => fault("body_html", "empty", "must not be empty"),
        (None, Some(body)) if body.trim().is_empty() => fault("mjml", "empty", "must not be empty"),
        _ => {}
    }
}

/// Makes what is sent from what was written, with the snippets as they are, and checks it. It runs
/// [without a connection](RequestContext::run_blocking).
///
/// # Errors
/// 400 `validation_failed` with every fault, its line and column.
pub(crate) async fn compose_template(
    ctx: &mut RequestContext,
    written: &WrittenTemplate,
    kind: TemplateKind,
) -> Result<ComposedTemplate, ApiError> {
    let tenant = ctx.tenant;
    let stored = snippets::load(ctx.db(), tenant, &written.mentions()).await?;
    let known = content::known_fields(ctx.db(), tenant).await?;
    let label = snippets::label(&written.texts(), &stored) + &content::fields_label(&known);
    let written = written.clone();
    ctx.run_blocking(label, move || TemplateComposer { written: &written, kind, stored: &stored, known: &known }.run())?
        .map_err(content::refused)
}

/// The snippets and the layout that a content holds, by name.
pub(super) async fn held(db: &mut PgConnection, tenant: Uuid, content: Uuid) -> sqlx::Result<Vec<HeldSnippet>> {
    sqlx::query_as!(
        HeldSnippet,
        "select h.snippet_id, s.name, h.snippet_version as version, s.version as current_version
         from content_snippets h
         join snippets s on s.tenant_id = $1 and s.id = h.snippet_id
         where h.tenant_id = $1 and h.content_id = $2
         order by s.name",
        tenant,
        content,
    )
    .fetch_all(db)
    .await
}

struct TemplateComposer<'a> {
    written: &'a WrittenTemplate,
    kind: TemplateKind,
    stored: &'a [StoredSnippet],
    known: &'a KnownFields,
}

impl TemplateComposer<'_> {
    fn run(&self) -> Result<ComposedTemplate, Vec<FieldFault>> {
        let (body, form) = self.written.body();
        let layout = self.layout(form)?;
        let body = self.put_in(Part::BodyHtml, body, form, layout.and_then(|layout| layout.text(form)));
        let text = self.written.text().map(|text| {
            self.put_in(
                Part::BodyText,
                text,
                SnippetText::Text,
                layout.and_then(|layout| layout.texts.body_text.as_ref()),
            )
        });
        // The faults of both parts, before either is gone on with.
        let (body, text) = match (body, text.transpose()) {
            (Ok(body), Ok(text)) => (body, text),
            (body, text) => return Err(body.err().into_iter().chain(text.err()).flatten().collect()),
        };
        let mut parts = TemplateParts {
            subject: self.written.subject.clone(),
            preheader: self.written.preheader.clone(),
            body_html: body.text.clone(),
            body_text: text.as_ref().map(|text| text.text.clone()).or_else(|| self.written.body_text.clone()),
        };
        let place = |fault: TemplateFault| match (fault.part, &text) {
            (Part::BodyHtml, _) => body.place(fault),
            (Part::BodyText, Some(text)) => text.place(fault),
            _ => fault,
        };
        let refuse = |faults: Vec<TemplateFault>| -> Vec<FieldFault> {
            faults.into_iter().map(|fault| content::field_fault(&place(fault), form.path())).collect()
        };
        let is_mjml = form == SnippetText::Mjml;
        if is_mjml {
            // Faults of Liquid have their places in the MJML; in the HTML there are only those of HTML.
            check_liquid(&parts.source(self.kind), self.known).map_err(refuse)?;
            parts.body_html = compile_mjml(&body.text).map_err(refuse)?;
        }
        let checked = check(&parts.source(self.kind), self.known);
        let mut checked = checked.map_err(|faults| if is_mjml { of_compiled(&faults) } else { refuse(faults) })?;
        if !is_mjml {
            for warning in &mut checked.warnings {
                let detail = std::mem::take(&mut warning.detail);
                (warning.position, warning.detail) = body.origin(warning.position, detail);
            }
        }
        let used = body.used.iter().chain(text.iter().flat_map(|text| &text.used)).map(String::as_str);
        let used: Vec<&str> = used.chain(self.written.layout.as_deref()).collect();
        let snippets = self.stored.iter().filter(|snippet| used.contains(&snippet.name.as_str()));
        let snippets = snippets.map(|snippet| (snippet.id, snippet.version)).collect();
        let changed =
            |written: &Option<String>, sent: Option<&String>| written.clone().filter(|text| Some(text) != sent);
        let written = WrittenBodies {
            layout: self.written.layout.clone(),
            mjml: self.written.mjml.clone(),
            html: changed(&self.written.body_html, Some(&parts.body_html)),
            text: changed(&self.written.body_text, parts.body_text.as_ref()),
        };
        Ok(ComposedTemplate { parts, written, checked, snippets })
    }

    /// The layout around the body, which has to be of the body's form.
    fn layout(&self, form: SnippetText) -> Result<Option<&StoredSnippet>, Vec<FieldFault>> {
        let Some(name) = &self.written.layout else { return Ok(None) };
        let refuse = |detail: String| Err(vec![FieldFault::new("layout", "unknown_layout", detail)]);
        match self.stored.iter().find(|stored| stored.is_layout && stored.name == *name) {
            None => refuse("there is no layout of this name".to_owned()),
            // HTML around MJML is no MJML.
            Some(layout) if form == SnippetText::Mjml && layout.texts.mjml.is_none() => {
                refuse("the layout has no `mjml`".to_owned())
            }
            Some(layout) if layout.text(form).is_none() => refuse("the layout has no `body_html`".to_owned()),
            Some(layout) => Ok(Some(layout)),
        }
    }

    /// A part with its snippets, and with the layout's text around it.
    fn put_in(
        &self,
        part: Part,
        source: &str,
        form: SnippetText,
        layout: Option<&String>,
    ) -> Result<Composed, Vec<FieldFault>> {
        let name = self.written.layout.as_deref().unwrap_or_default();
        let layout = layout.map(|source| Layout { name, source });
        if layout.is_none() && !source.contains("include") {
            return Ok(Composed::unchanged(source));
        }
        let composed = compose(part, source, None, layout, &snippets::texts_for(self.stored, form));
        composed.map_err(|faults| faults.iter().map(|fault| content::field_fault(fault, form.path())).collect())
    }
}

/// Faults of a template whose HTML was made from MJML. The subject is as it was written.
fn of_compiled(faults: &[TemplateFault]) -> Vec<FieldFault> {
    let fault = |fault: &TemplateFault| match fault.part {
        Part::Subject => content::field_fault(fault, "mjml"),
        _ => FieldFault::new("mjml", fault.code.as_str(), format!("the HTML made from it: {}", fault.detail)),
    };
    faults.iter().map(fault).collect()
}
