// A program over the generated client. It is compiled, never run: what it says about bodies and answers must be what the document
// says.
import { connect, type components, type paths } from "../src/index.js";

type Contact = components["schemas"]["Contact"];

const api = connect("https://mail.example", "svc_live_…");
const product_tenant_id = "tenant-1";

/** Every contact, page by page. */
export async function* contacts(): AsyncGenerator<Contact> {
  let cursor: string | undefined;
  do {
    const { data, error } = await api.GET("/v1/contacts", {
      params: { query: { product_tenant_id, limit: 200, ...(cursor === undefined ? {} : { cursor }) } },
    });
    if (error) throw new Error(error.error);
    yield* data.contacts;
    cursor = data.next_cursor ?? undefined;
  } while (cursor !== undefined);
}

/** Creates a campaign to a list and launches it. Answers how many will be attempted. */
export async function campaign(list_id: string, sender_profile_id: string): Promise<number> {
  const created = await api.POST("/v1/campaigns", {
    body: {
      product_tenant_id,
      name: "Spring",
      sender_profile_id,
      audience_mode: "list",
      list_id,
      subject: "Hello {{ first_name }}",
      body_html: "<p>Hello {{ first_name }}</p>",
    },
    params: { header: { "Idempotency-Key": "spring-1" } },
  });
  if (created.error) throw new Error(created.error.detail ?? created.error.error);
  const status: "draft" = created.data.status;
  const launched = await api.POST("/v1/campaigns/{id}/launch", {
    params: { path: { id: created.data.campaign_id } },
    body: { product_tenant_id },
  });
  if (launched.error) {
    // The codes are a closed set: a mistyped one does not compile.
    if (launched.error.error === "audience_resolved_to_zero_contacts") return 0;
    throw new Error(`${status}: ${launched.error.error}`);
  }
  return launched.data.queued;
}

/** Sends a receipt and answers what became of it. */
export async function receipt(template_id: string, email: string): Promise<components["schemas"]["Send"]["state"]> {
  const accepted = await api.POST("/v1/transactional", {
    body: { product_tenant_id, template_id, email, data: { total: "12.50" } },
  });
  if (accepted.error) throw new Error(accepted.error.error);
  const found = await api.GET("/v1/sends/{id}", {
    params: { path: { id: accepted.data.send_id }, query: { product_tenant_id } },
  });
  if (found.error) throw new Error(found.error.error);
  return found.data.send.state;
}

type NewContact = paths["/v1/contacts"]["post"]["requestBody"]["content"]["application/json"];
type NewAudience = paths["/v1/audiences"]["post"]["requestBody"]["content"]["application/json"];

/** What must not compile. */
export const mistakes: unknown[] = [
  // @ts-expect-error: a required field is missing
  { product_tenant_id, kind: "list" } satisfies NewAudience,
  // @ts-expect-error: no such field
  { product_tenant_id, email: "a@example.com", colour: "red" } satisfies NewContact,
  // @ts-expect-error: no such kind
  { product_tenant_id, kind: "heap", name: "x" } satisfies NewAudience,
  // @ts-expect-error: no such path
  (): unknown => api.GET("/v1/nothing", {}),
];
